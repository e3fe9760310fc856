/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A training run without a network: gradients are given by a formula.  Run by mpirun on any
 * number of ranks, it saves and resumes as uctrain does and prints its final state, so that two
 * runs can be compared.
 *
 *     ranks_checkpoint KEY=VALUE ... [-- KEY=VALUE ...]...
 *
 * Several runs share one mpirun.  The output of a run with name=NAME begins with "NAME: "; its
 * failure is printed, too, and does not make the program fail.
 */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/user_rules.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/topology.h"
#include "gpu/config/config.h"
#include "gpu/load/load.h"
#include "gpu/model/gpt2.h"
#include "gpu/save/saver.h"
#include "gpu/zero/optimizer.h"
#include "gpu/zero/zero.h"
#include "tests/support/apart.h"
#include "tests/support/context.h"
#include "tests/support/update.h"

struct run {
	struct config config;
	struct comm *comm;
	struct topology ranks;
	struct gpt2 model, whole;
	struct backend *backend;
	struct zero zero;
	struct loss_scaler scaler;
	uint64_t step, skipped;
	uint64_t loaded_rows; /* rows of the vocabulary in the loaded checkpoint */
	struct load_options load;
	unsigned largest;    /* size limit of written files, in bytes; 0: none */
	bool background;     /* save in the background of training ... */
	unsigned more;       /* number of these steps */
	bool killed;         /* stop in the middle of these steps */
	bool apart;          /* on a device with separate memory, by NCCL */
	unsigned vocab_rows; /* unpadded vocabulary rows; 0: all */
	bool padding;        /* whether padding has non-zero values */
	char *name, *preset;
};

/* Print on rank 0. */
__attribute__((format(printf, 2, 3))) static void print_from(const struct run *r,
							     const char *format, ...)
{
	va_list args;

	if (r->comm->rank != 0)
		return;
	if (r->name)
		printf("%s: ", r->name);
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
}

static void set_defaults(struct config *c)
{
	*c = (struct config){
		.model = { .n_layer = 2,
			   .n_head = 2,
			   .n_embd = 6,
			   .vocab_size = 11,
			   .n_positions = 5,
			   .layer_norm_epsilon = 1e-5F },
		.dtype = DTYPE_F32,
		.tensor_parallel = 1,
		.pipeline_parallel = 1,
		.zero_stage = 1,
		.naming.qkv = NAMING_QKV_THIRDS,
		.batch = 24,
		.micro_batch = 2,
		.accumulation = 1,
		.steps = 3,
		.seed = 7,
		.optimizer = { .kind = OPTIMIZER_ADAMW,
			       .lr = 0.01,
			       .beta1 = 0.9,
			       .beta2 = 0.999,
			       .eps = 1e-8,
			       .weight_decay = 0.01 },
		.gradient_clipping = 1,
	};
}

static int set_key(struct run *r, const char *key, char *value)
{
	struct config *c = &r->config;
	const struct {
		const char *key;
		unsigned *number;
		bool *flag;
		char **text;
	} keys[] = {
		{ "pipe", .number = &c->pipeline_parallel },
		{ "partition", .number = (unsigned *)&c->partition },
		{ "tensor", .number = &c->tensor_parallel },
		{ "stage", .number = &c->zero_stage },
		{ "heads", .number = &c->model.n_head },
		{ "layers", .number = &c->model.n_layer },
		{ "width", .number = &c->model.n_embd },
		{ "vocab", .number = &c->model.vocab_size },
		{ "positions", .number = &c->model.n_positions },
		{ "names", .number = (unsigned *)&c->naming.family },
		{ "qkv", .number = (unsigned *)&c->naming.qkv },
		{ "keep", .number = &c->keep_last },
		{ "kind", .number = (unsigned *)&c->optimizer.kind },
		{ "flavor", .number = (unsigned *)&c->optimizer.flavor },
		{ "schedule", .number = (unsigned *)&c->schedule.kind },
		{ "largest", .number = &r->largest },
		{ "background", .flag = &r->background },
		{ "more", .number = &r->more },
		{ "killed", .flag = &r->killed },
		{ "apart", .flag = &r->apart },
		{ "words", .number = &r->vocab_rows },
		{ "dynamic", .flag = &c->scaler.dynamic },
		{ "load", .text = (char **)&r->load.dir },
		{ "tag", .text = (char **)&r->load.tag },
		{ "universal", .flag = &r->load.universal },
		{ "no_optimizer", .flag = &r->load.no_optimizer },
		{ "ignore_missing", .flag = &r->load.ignore_missing },
		{ "qkv_order", .number = (unsigned *)&r->load.qkv_order },
		{ "preset", .text = &r->preset },
		{ "save", .text = &c->checkpoint_dir },
		{ "json", .text = &c->deepspeed_json },
		{ "name", .text = &r->name },
	};

	for (size_t i = 0; i < sizeof(keys) / sizeof(*keys); i++) {
		if (strcmp(key, keys[i].key) != 0)
			continue;
		if (keys[i].number)
			*keys[i].number = (unsigned)strtoul(value, NULL, 10);
		if (keys[i].flag)
			*keys[i].flag = strcmp(value, "yes") == 0;
		if (keys[i].text)
			*keys[i].text = value;
		return 0;
	}
	if (strcmp(key, "steps") == 0)
		c->steps = strtoull(value, NULL, 10);
	else if (strcmp(key, "dtype") == 0)
		c->dtype = !strcmp(value, "bf16")   ? DTYPE_BF16
			   : !strcmp(value, "fp16") ? DTYPE_F16
						    : DTYPE_F32;
	else
		return -EINVAL;
	return 0;
}

static int parse(struct run *r, int argc, char **argv)
{
	struct config *c = &r->config;

	set_defaults(c);
	for (int i = 0; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		if (!value)
			return -EINVAL;
		*value++ = '\0';
		if (set_key(r, argv[i], value))
			return -EINVAL;
	}
	r->load.scheduled = c->schedule.kind != SCHEDULE_CONSTANT;
	c->schedule.warmup = 2;
	c->schedule.total = 8;
	c->scaler.initial = c->scaler.dynamic ? 256 : 0;
	c->scaler.window = 2;
	c->scaler.hysteresis = 2;
	c->scaler.minimum = 1;
	return 0;
}

/* Return the gradient of element e of the model in a step. */
static float known_gradient(uint64_t step, uint64_t e)
{
	return (float)((int)((e * 7 + step * 3) % 23) - 11) / 64;
}

/* Compute the gradient of a parameter's elements, which begin at `start` in the whole model; 0 for
 * padding. */
static void set_gradient(const struct run *r, const struct gpt2_param *p, uint64_t start, float *x)
{
	uint64_t at, n;

	for (uint64_t i = 0; i < p->numel; i += n) {
		n = gpt2_whole_run(p, i, p->numel - i, &at);
		for (uint64_t k = 0; k < n && at + k < p->whole_numel; k++)
			x[i + k] = known_gradient(r->step, start + at + k) * (float)r->scaler.scale;
	}
}

/* Return the number of elements of the whole model before a parameter. */
static uint64_t start_of(const struct run *r, const struct gpt2_param *p)
{
	uint64_t n = 0;

	for (size_t i = 0; i < p->number; i++)
		n += r->whole.params[i].numel;
	return n;
}

/* Every rank has the same gradient, which therefore equals the average. */
static void add_gradients(struct run *r)
{
	const struct network_weights w = zero_weights(&r->zero);

	for (unsigned u = 0; u < r->model.nunits; u++) {
		const struct gpt2_unit *unit = &r->model.units[u];
		const uint64_t n = unit->numel;
		bool fresh;
		float *g = n ? w.gradient(w.ctx, u, &fresh) : NULL;
		float *x = calloc(n + 1, sizeof(*x));

		if (!n) {
			free(x);
			continue;
		}

		/* One micro-batch: the gradient is not accumulated. */
		for (size_t i = unit->first; i < unit->first + unit->n; i++) {
			const struct gpt2_param *p = &r->model.params[i];

			/* Only one end of a pipeline contributes the embedding. */
			if (r->ranks.pipe.rank == 0 || p->number != GPT2_WTE)
				set_gradient(r, p, start_of(r, p), x + p->start);
		}
		r->backend->ops->to_device(r->backend, g, x, n * sizeof(*x));
		free(x);
		w.complete(w.ctx, u);
	}
}

static int train(struct run *r, uint64_t steps, struct errmsg *err)
{
	const struct config *c = &r->config;
	int rc = 0;

	while (r->step < steps && !rc) {
		struct zero_update u = { .lr = lr_schedule_lr(&c->schedule, r->zero.optimizer.lr,
							      r->zero.step + 1),
					 .clip = c->gradient_clipping,
					 .grad_scale = r->scaler.scale };

		add_gradients(r);
		rc = update_all(&r->zero, &u, err);
		r->step++;
		r->skipped += u.overflow;
		if (!rc)
			rc = loss_scaler_update(&r->scaler, u.overflow, err);
	}
	return rc;
}

/* After preparation, a save allocates no host memory. */
static int begin_save(struct saver *s, const struct save_options *o, struct errmsg *err)
{
	int rc = saver_prepare(s, o, err);
	const unsigned asked = apart_host_asked();

	if (!rc)
		rc = saver_begin(s, o, err);
	if (!rc && apart_host_asked() != asked)
		rc = errmsg_set(err, -EINVAL, "the save asked for memory");
	return rc;
}

/* A save writes the state of the time when it began. */
static int save_and_train(struct run *r, const struct save_options *o, struct errmsg *err)
{
	struct saver *s;
	int rc = saver_new(&s, &r->zero, r->background, err);

	if (rc)
		return rc;
	rc = begin_save(s, o, err);
	if (r->killed)
		raise(SIGKILL);
	for (unsigned i = 0; i < r->more && !rc; i++) {
		rc = train(r, r->step + 1, err);
		if (!rc)
			rc = saver_poll(s, false, err);
	}
	if (!rc)
		rc = saver_poll(s, true, err);
	if (!rc && saver_saved(s) != o->step)
		rc = errmsg_set(err, -EINVAL, "step %" PRIu64 " was saved", saver_saved(s));
	saver_free(s);
	return rc;
}

static int save(struct run *r, struct errmsg *err)
{
	const struct save_options o = { .dir = r->config.checkpoint_dir,
					.keep_last = r->config.keep_last,
					.config = &r->config,
					.scaler = &r->scaler,
					.step = r->step,
					.skipped = r->skipped,
					.vocab_rows = r->loaded_rows };

	if (r->largest) {
		signal(SIGXFSZ, SIG_IGN);
		setrlimit(RLIMIT_FSIZE, &(struct rlimit){ r->largest, r->largest });
	}
	return o.dir ? save_and_train(r, &o, err) : 0;
}

/* Print the bytes of all ranks. */
static void tell_bytes(struct run *r, const struct load_result *got)
{
	double all[] = { (double)got->bytes, (double)got->direct };

	comm_sum_double(r->comm, all, 2);
	print_from(r, "read %.0f bytes, %.0f past the mount\n", all[0], all[1]);
}

static int resume(struct run *r, struct errmsg *err)
{
	struct user_rules rules = { 0 };
	struct load_result got;
	int rc = r->preset ? user_rules_preset(&rules, r->preset, err) : 0;

	r->load.rules = &rules;
	r->load.u = test_context();
	if (!rc)
		rc = load_checkpoint(&r->zero, &r->load, &got, err);
	user_rules_done(&rules);
	if (rc)
		return rc;
	r->step = got.step;
	r->skipped = got.skipped;
	r->loaded_rows = got.vocab_rows;
	if (got.has_scaler)
		r->scaler = got.scaler;
	if (got.missing)
		print_from(r, "%" PRIu64 " missing: %s\n", got.missing, got.first.text);
	tell_bytes(r, &got);
	return 0;
}

static int begin(struct run *r, struct errmsg *err)
{
	loss_scaler_init(&r->scaler, &r->config.scaler);
	if (r->load.dir)
		return resume(r, err);
	return zero_init_weights(&r->zero, r->config.seed, err);
}

static uint64_t digest(uint64_t h, const float *x, size_t n)
{
	const uint8_t *p = (const uint8_t *)x;

	for (size_t i = 0; i < n * sizeof(*x); i++)
		h = (h ^ p[i]) * UINT64_C(0x100000001b3);
	return h;
}

/* Copy this rank's elements of a parameter into the whole one. */
static void place(const struct gpt2_param *p, const struct fragment *f, const float *part,
		  float *whole)
{
	uint64_t at, n;

	for (uint64_t i = 0; i < f->numel; i += n) {
		n = gpt2_whole_run(p, f->first + i, f->numel - i, &at);
		for (uint64_t k = 0; k < n && at + k < p->whole_numel; k++)
			whole[at + k] = part[i + k];
	}
}

/* The same for parameter `number` of the whole model, unless another rank copies it. */
static void place_number(struct run *r, size_t number, const float *part, float *whole)
{
	for (size_t i = 0; i < r->model.nparams; i++) {
		const struct gpt2_param *p = &r->model.params[i];
		const struct fragment f = zero_fragment(&r->zero, i);
		float *mine;

		if (p->number != number || !p->first)
			continue;
		mine = calloc(f.numel + 1, sizeof(*mine));
		r->backend->ops->to_host(r->backend, mine, part + f.start, f.numel * sizeof(*mine));
		place(p, &f, mine, whole);
		free(mine);
	}
}

/* Collect the elements of a partition's buffer in model order, without padding. */
static uint64_t collect(struct run *r, const float *part)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < r->whole.nparams; i++) {
		const struct gpt2_param *p = &r->whole.params[i];
		const uint64_t n = p->whole_numel;
		const uint64_t rows_end =
			i == GPT2_WTE && r->vocab_rows ? r->vocab_rows * p->whole_shape[1] : n;
		float *x = calloc(n, sizeof(*x));

		place_number(r, i, part, x);
		if (r->zero.stage)
			comm_sum(&r->ranks.data, x, n, DTYPE_F32);
		comm_sum(&r->ranks.tensor, x, n, DTYPE_F32);
		comm_sum(&r->ranks.pipe, x, n, DTYPE_F32);
		h = digest(h, x, rows_end);
		for (uint64_t k = rows_end; k < n; k++)
			r->padding |= x[k] != 0;
		free(x);
	}
	return h;
}

static void report(struct run *r)
{
	const uint64_t fp32 = collect(r, r->zero.master);
	const uint64_t exp_avg = collect(r, r->zero.exp_avg);
	const uint64_t exp_avg_sq = collect(r, r->zero.exp_avg_sq);

	print_from(r,
		   "step %" PRIu64 " updates %" PRIu64 " fp32 %016" PRIx64 " exp_avg %016" PRIx64
		   " exp_avg_sq %016" PRIx64 " flavor %d scale %g%s\n",
		   r->step, r->zero.step, fp32, exp_avg, exp_avg_sq, r->zero.optimizer.flavor,
		   r->scaler.scale, r->padding ? " and padding" : "");
}

static int run(struct run *r, struct errmsg *err)
{
	const struct config *c = &r->config;
	const struct comm *tensor = &r->ranks.tensor;
	const struct comm *pipe = &r->ranks.pipe;
	const struct topology_sizes sizes = { c->tensor_parallel, 1, c->pipeline_parallel };
	int rc = topology_init(&r->ranks, r->comm, &sizes, err);

	if (!rc)
		rc = gpt2_init(&r->whole, &c->model, err);
	if (!rc)
		rc = gpt2_init_part(&r->model, &c->model,
				    &(struct gpt2_split){ tensor->rank, tensor->size, pipe->rank,
							  pipe->size, c->partition },
				    err);
	if (r->apart) {
		r->backend = apart_backend(c->dtype);
		snprintf(r->backend->device, sizeof(r->backend->device), "gpu%u", r->comm->rank);
	} else if (!rc)
		rc = backend_cpu_new(&r->backend, c->dtype, 1, err);
	if (!rc)
		rc = topology_connect(&r->ranks, r->backend, err);
	if (!rc)
		rc = zero_init(&r->zero, &r->model, &r->ranks, r->backend,
			       &(struct zero_options){ .stage = c->zero_stage,
						       .comm_dtype = DTYPE_F32,
						       .optimizer = c->optimizer },
			       err);
	if (!rc)
		rc = begin(r, err);
	if (!rc)
		rc = train(r, c->steps, err);
	if (!rc)
		report(r);
	return rc ? rc : save(r, err);
}

/* Run to the end; rank 0 prints why a run failed. */
static void run_one(struct comm *comm, int argc, char **argv)
{
	struct run r = { .comm = comm };
	struct errmsg err = { "" };
	int rc = parse(&r, argc, argv);

	if (!rc)
		rc = run(&r, &err);
	if (rc)
		print_from(&r, "failed: %s (%s)\n", err.text, strerror(-rc));
	else
		print_from(&r, "done\n");
	fflush(stdout);
	zero_done(&r.zero);
	topology_disconnect(&r.ranks);
	if (r.backend)
		r.backend->ops->destroy(r.backend);
	gpt2_done(&r.model);
	gpt2_done(&r.whole);
	topology_done(&r.ranks);
}

int main(int argc, char **argv)
{
	struct errmsg err = { "" };
	struct comm comm = { 0 };
	int first = 1;

	if (comm_init(&comm, &argc, &argv, &err)) {
		fprintf(stderr, "ranks_checkpoint: %s\n", err.text);
		return 1;
	}
	for (int i = 1; i <= argc; i++) {
		if (i < argc && strcmp(argv[i], "--") != 0)
			continue;
		run_one(&comm, i - first, argv + first);
		first = i + 1;
	}
	comm_done(&comm);
	return 0;
}
