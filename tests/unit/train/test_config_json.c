/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed configurations with a command line: valid ones with the resulting configuration, and
 * invalid ones with their message. */
#include <stdio.h>
#include <string.h>

#include "tests/support/commandline.h"
#include "tests/support/unit.h"

static void a_configuration_is_taken_over(void **state)
{
	static const char json[] =
		"{\"train_batch_size\": 8, \"steps_per_print\": 10,\n"
		" \"communication_data_type\": \"fp16\",\n"
		" \"gradient_clipping\": 0.5, \"bf16\": {\"enabled\": true},\n"
		" \"zero_optimization\": {\"stage\": 3, \"overlap_comm\": false,\n"
		"   \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}},\n"
		" \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3,\n"
		"   \"betas\": [0.8, 0.99], \"eps\": 1e-7, \"weight_decay\": 0.1}},\n"
		" \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\n"
		"   \"warmup_min_lr\": 1e-5, \"warmup_max_lr\": 2e-3,\n"
		"   \"warmup_num_steps\": 50, \"warmup_type\": \"linear\"}},\n"
		" \"checkpoint\": {\"load_universal\": true}}";
	struct config c;

	line_is_taken(&c, line_with_json(json, ""), 2);
	assert_int_equal(c.batch, 8);
	assert_true(c.gradient_clipping == 0.5);
	assert_int_equal(c.dtype, DTYPE_BF16);
	assert_int_equal(c.comm_dtype, DTYPE_F16);
	assert_int_equal(c.zero_stage, 3);
	assert_int_equal(c.optimizer.kind, OPTIMIZER_ADAMW);
	assert_int_equal(c.optimizer.flavor, OPTIMIZER_DEEPSPEED_CPU);
	assert_true(c.optimizer.lr == 2e-3);
	assert_true(c.optimizer.beta1 == 0.8 && c.optimizer.beta2 == 0.99);
	assert_true(c.optimizer.eps == 1e-7);
	assert_true(c.optimizer.weight_decay == 0.1);
	assert_int_equal(c.schedule.kind, SCHEDULE_WARMUP);
	assert_true(c.schedule.start_lr == 1e-5);
	assert_int_equal(c.schedule.warmup, 50);
	assert_false(c.schedule.log_warmup);
	assert_true(c.universal);
	assert_string_equal(c.deepspeed_json, json);
	config_done(&c);
}

static void flags_win_wherever_they_stand(void **state)
{
	struct config c;
	char line[LINE_LEN];

	snprintf(line, sizeof(line), "--zero_stage 2 %s",
		 line_with_json("{\"zero_optimization\": {\"stage\": 3}}", "--lr 1e-2"));
	line_is_taken(&c, line, 1);
	assert_int_equal(c.zero_stage, 2);
	assert_true(c.optimizer.lr == 1e-2);
	config_done(&c);
}

static void deepspeeds_kinds_of_adam(void **state)
{
	static const struct {
		const char *json;
		enum optimizer_kind kind;
		enum optimizer_flavor flavor;
		double lr, weight_decay;
	} cases[] = {
		{ "{}", OPTIMIZER_ADAMW, OPTIMIZER_TORCH, 5e-4, 0.01 },
		{ "{\"optimizer\": {\"type\": \"Adam\"}}", OPTIMIZER_ADAMW, OPTIMIZER_APEX, 1e-3,
		  0 },
		{ "{\"optimizer\": {\"type\": \"Adam\","
		  "\"params\": {\"adam_w_mode\": false, \"lr\": 0.5}}}",
		  OPTIMIZER_ADAM, OPTIMIZER_APEX, 0.5, 0 },
		{ "{\"optimizer\": {\"type\": \"adamw\","
		  "\"params\": {\"torch_adam\": true}}}",
		  OPTIMIZER_ADAMW, OPTIMIZER_TORCH, 1e-3, 0.01 },
		{ "{\"optimizer\": {\"type\": \"AdamW\","
		  "\"params\": {\"weight_decay\": 0.25}},"
		  "\"zero_optimization\": {\"cpu_offload\": true}}",
		  OPTIMIZER_ADAMW, OPTIMIZER_DEEPSPEED_CPU, 1e-3, 0.25 },
		{ "{\"optimizer\": {\"type\": \"AdamW\"},"
		  "\"zero_optimization\": {\"offload_optimizer\":"
		  "{\"device\": \"none\"}}}",
		  OPTIMIZER_ADAMW, OPTIMIZER_APEX, 1e-3, 0 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct config c;

		line_is_taken(&c, line_with_json(cases[i].json, ""), 1);
		assert_int_equal(c.optimizer.kind, cases[i].kind);
		assert_int_equal(c.optimizer.flavor, cases[i].flavor);
		assert_true(c.optimizer.lr == cases[i].lr);
		assert_true(c.optimizer.weight_decay == cases[i].weight_decay);
		config_done(&c);
	}
}

static void loss_scales(void **state)
{
	static const struct {
		const char *json, *flags;
		struct loss_scaler_config want;
	} cases[] = {
		{ "{\"fp16\": {\"enabled\": true}}", "", { 65536, true, 1000, 2, 1 } },
		{ "{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}",
		  "",
		  { 128, false, 1000, 2, 1 } },
		{ "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0,"
		  "\"initial_scale_power\": 12, \"loss_scale_window\": 50,"
		  "\"hysteresis\": 3, \"min_loss_scale\": 4}}",
		  "",
		  { 4096, true, 50, 3, 4 } },
		{ "{\"fp16\": {\"enabled\": true}}", "--dtype fp32", { 0, false, 0, 0, 0 } },
		{ "{\"fp16\": {\"enabled\": false}}", "", { 0, false, 0, 0, 0 } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct loss_scaler_config *const want = &cases[i].want;
		struct config c;

		line_is_taken(&c, line_with_json(cases[i].json, cases[i].flags), 1);
		assert_true(c.scaler.initial == want->initial);
		assert_int_equal(c.scaler.dynamic, want->dynamic);
		assert_int_equal(c.scaler.window, want->window);
		assert_int_equal(c.scaler.hysteresis, want->hysteresis);
		assert_true(c.scaler.minimum == want->minimum);
		config_done(&c);
	}
}

static void schedules(void **state)
{
	static const struct {
		const char *json, *flags;
		struct lr_schedule_config want;
	} cases[] = {
		{ "{\"scheduler\": {\"type\": \"WarmupLR\"}}",
		  "",
		  { SCHEDULE_WARMUP, 0, 0, 1000, 100, true } },
		{ "{\"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\":"
		  "{\"total_num_steps\": 500, \"warmup_num_steps\": 20}}}",
		  "",
		  { SCHEDULE_LINEAR, 0, 0, 20, 500, true } },
		{ "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\":"
		  "{\"total_num_steps\": \"auto\", \"warmup_num_steps\": 20,"
		  "\"warmup_min_ratio\": 0.25, \"cos_min_ratio\": 0.5}}}",
		  "--lr 2 --steps 70",
		  { SCHEDULE_COSINE, 0.5, 1, 20, 70, true } },
		{ "{\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\":"
		  "{\"total_num_steps\": 90, \"warmup_num_steps\": 20}}}",
		  "--min_lr 1e-4",
		  { SCHEDULE_COSINE, 1e-4, 1e-4, 20, 90, true } },
		{ "{\"scheduler\": {\"type\": \"WarmupLR\", \"params\":"
		  "{\"warmup_min_lr\": 1e-5, \"warmup_num_steps\": 30}}}",
		  "--lr_schedule cosine",
		  { SCHEDULE_COSINE, 0, 0, 30, 100, false } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct lr_schedule_config *const want = &cases[i].want;
		struct config c;

		line_is_taken(&c, line_with_json(cases[i].json, cases[i].flags), 1);
		assert_int_equal(c.schedule.kind, want->kind);
		assert_true(c.schedule.start_lr == want->start_lr);
		assert_true(c.schedule.min_lr == want->min_lr);
		assert_int_equal(c.schedule.warmup, want->warmup);
		assert_int_equal(c.schedule.total, want->total);
		assert_int_equal(c.schedule.log_warmup, want->log_warmup);
		config_done(&c);
	}
}

static void wrong_configurations_are_refused(void **state)
{
	static const struct {
		const char *json, *says;
	} cases[] = {
		{ "", "line 1, column 1: no valid JSON" },
		{ "{\"train_batch_size\": 8,\n  oops}", "near line 2, column 4: no valid JSON" },
		{ "{} {}", "line 1, column 4: no valid JSON" },
		{ "[1]", "is no JSON object" },
		{ "{\"train_batch_size\": 1.5}", "train_batch_size must be an integer from 1" },
		{ "{\"train_batch_size\": \"many\"}", "must be an integer" },
		{ "{\"train_batch_size\": -4}", "must be an integer" },
		{ "{\"train_batch_size\": 1e300}", "must be an integer" },
		{ "{\"zero_optimization\": {\"stage\": 4}}",
		  "zero_optimization.stage must be an integer from 0 to 3" },
		{ "{\"zero_optimization\": 1}", "zero_optimization must be an object" },
		{ "{\"bf16\": \"x\"}", "bf16 must be an object" },
		{ "{\"bf16\": {\"enabled\": 1}}", "bf16.enabled must be true or false" },
		{ "{\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}",
		  "bf16 and fp16 are both enabled" },
		{ "{\"communication_data_type\": \"fp8\"}",
		  "communication_data_type must be fp32, bf16 or fp16" },
		{ "{\"optimizer\": {\"type\": \"Lion\"}}", "optimizer.type must be Adam or AdamW" },
		{ "{\"optimizer\": {\"params\": {\"betas\": [1, 2, 3]}}}",
		  "optimizer.params.betas must be two numbers" },
		{ "{\"scheduler\": {\"type\": \"OneCycle\"}}", "scheduler.type must be WarmupLR" },
		{ "{\"fp16\": {\"consecutive_hysteresis\": true}}",
		  "uctrain has no fp16.consecutive_hysteresis" },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		line_is_refused(line_with_json(cases[i].json, ""), 1, cases[i].says);
}

/* Capture stderr in a file. */
static void unknown_keys_are_warned_of(void **state)
{
	const char *const line =
		line_with_json("{\"steps_per_print\": 1, \"zero_optimization\": {\"stage\": 1,"
			       "\"overlap_com\": true, \"reduce_bucket_size\": 5e8},"
			       "\"tensorboard\": {\"enabled\": true}, \"train_bach_size\": 3,"
			       "\"zero_allow_untested_optimizer\": true}",
			       "");
	char said[256] = "";
	char copy[LINE_LEN];
	struct config c;
	FILE *saved;

	snprintf(copy, sizeof(copy), "%s", line);
	char *argv[] = { "uctrain", strtok(copy, " "), strtok(NULL, " "), NULL };

	saved = stderr;
	stderr = tmpfile();
	assert_non_null(stderr);
	assert_int_equal(config_parse(&c, 3, argv, 1, true, NULL), 0);
	rewind(stderr);
	assert_non_null(fgets(said, sizeof(said), stderr));
	fclose(stderr);
	stderr = saved;
	assert_non_null(strstr(said, "unknown keys, ignored: zero_optimization"
				     ".overlap_com, train_bach_size\n"));
	config_done(&c);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_configuration_is_taken_over),
		cmocka_unit_test(flags_win_wherever_they_stand),
		cmocka_unit_test(deepspeeds_kinds_of_adam),
		cmocka_unit_test(loss_scales),
		cmocka_unit_test(schedules),
		cmocka_unit_test(wrong_configurations_are_refused),
		cmocka_unit_test(unknown_keys_are_warned_of),
	};

	return cmocka_run_group_tests(tests, lines_set_up, lines_tear_down);
}
