/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/metrics/metrics.h"

/* clang-format off: it takes a row for a block */
#define FIGURE(column, tag) \
	{ #column, tag, offsetof(struct metrics_step, column) }
/* clang-format on */

const struct metrics_figure metrics_figures[METRICS_FIGURES] = {
	FIGURE(loss, METRICS_TRAIN_LOSS),
	FIGURE(lr, "train/lr"),
	FIGURE(grad_norm, "train/grad_norm"),
	FIGURE(tokens_per_second, "speed/tokens_per_second"),
	FIGURE(memory, "speed/memory"),
	FIGURE(loss_scale, "train/loss_scale"),
	FIGURE(valid_loss, METRICS_VALID_LOSS),
	FIGURE(tflops, "speed/tflops"),
	FIGURE(mfu, "speed/mfu"),
	FIGURE(device_memory, "speed/device_memory"),
	FIGURE(data_seconds, NULL),
	FIGURE(pass_seconds, NULL),
	FIGURE(update_seconds, NULL),
	FIGURE(save_seconds, NULL),
};
