/* SPDX-License-Identifier: Apache-2.0 */
/* What a command line and a DeepSpeed configuration ask for, and which of
 * them cannot be. */
#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/errmsg.h"
#include "gpu/config.h"
#include "gpu/flags.h"
#include "tests/mkckpt.h"
#include "tests/mkpt.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define WORDS_MAX 16
#define LINE_MAX_LEN 512

static char *dir;

/* Parse a command line of words between blanks. */
static int parse(struct config *c, const char *line, unsigned ranks,
		 struct errmsg *err)
{
	char copy[LINE_MAX_LEN];
	char *argv[WORDS_MAX + 2] = { "uctrain" };
	int argc = 1;

	snprintf(copy, sizeof(copy), "%s", line);
	for (char *w = strtok(copy, " "); w; w = strtok(NULL, " ")) {
		assert_true(argc <= WORDS_MAX);
		argv[argc++] = w;
	}
	err->text[0] = '\0';
	return config_parse(c, argc, argv, ranks, false, err);
}

static void must_parse(struct config *c, const char *line, unsigned ranks)
{
	struct errmsg err;
	const int rc = parse(c, line, ranks, &err);

	if (rc)
		fail_msg("%s: %s", line, err.text);
}

static void must_fail(const char *line, unsigned ranks, const char *says)
{
	struct config c;
	struct errmsg err;

	if (parse(&c, line, ranks, &err) >= 0)
		fail_msg("%s: was accepted", line);
	if (!strstr(err.text, says))
		fail_msg("%s: said '%s', not '%s'", line, err.text, says);
	assert_null(c.data);
}

/* Write a configuration, and the command line that names it and goes on with
 * `more`. */
static const char *with_json(const char *json, const char *more)
{
	static char line[LINE_MAX_LEN];
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/ds.json", dir);
	mkpt_save(path, json, strlen(json));
	snprintf(line, sizeof(line), "--deepspeed_config %.200s %s", path, more);
	return line;
}

/* --- flags ----------------------------------------------------------------- */

static void defaults_are_the_demos(void **state)
{
	struct config c;

	(void)state;
	must_parse(&c, "", 4);
	assert_int_equal(c.model.n_layer, 4);
	assert_int_equal(c.model.n_embd, 128);
	assert_int_equal(c.seq_length, 128);
	assert_int_equal(c.batch, 16);
	assert_int_equal(c.micro_batch, 4);
	assert_int_equal(c.accumulation, 1);
	assert_int_equal(c.zero_stage, 1);
	assert_int_equal(c.dtype, DTYPE_F32);
	assert_int_equal(c.optimizer.kind, OPTIMIZER_ADAMW);
	assert_int_equal(c.optimizer.flavor, OPTIMIZER_TORCH);
	assert_true(c.optimizer.lr == 5e-4);
	assert_int_equal(c.schedule.kind, SCHEDULE_CONSTANT);
	assert_int_equal(c.schedule.total, c.steps);
	assert_true(c.schedule.start_lr == 0);
	assert_true(c.scaler.initial == 0 && !c.scaler.dynamic);
	assert_string_equal(c.data, "synthetic");
	assert_string_equal(c.run_name, "gpt2-dsuc_tp1_pp1_dp4_sp1");
	assert_null(c.checkpoint_dir);
	assert_null(c.resume_dir);
	assert_null(c.deepspeed_json);
	config_done(&c);
}

static void flags_set_what_they_say(void **state)
{
	struct config c;

	(void)state;
	must_parse(
		&c,
		"--n_layer 2 --model gpt2-medium --dropout 0.1 --betas 0.8,0.95 "
		"--dtype fp16 --optimizer Adam --lr_schedule cosine --warmup_steps 10",
		1);
	assert_int_equal(c.model.n_layer, 2);
	assert_int_equal(c.model.n_embd, 1024);
	assert_true(c.model.dropout == 0.1f);
	assert_true(c.optimizer.beta1 == 0.8 && c.optimizer.beta2 == 0.95);
	assert_int_equal(c.dtype, DTYPE_F16);
	assert_int_equal(c.optimizer.kind, OPTIMIZER_ADAM);
	assert_int_equal(c.schedule.kind, SCHEDULE_COSINE);
	assert_int_equal(c.schedule.warmup, 10);
	assert_false(c.schedule.log_warmup);
	assert_true(c.scaler.dynamic && c.scaler.initial == 65536);
	assert_string_equal(c.run_name, "gpt2-medium_tp1_pp1_dp1_sp1");
	config_done(&c);

	must_parse(&c,
		   "--seed 7 --deterministic --device cuda --data=a.u16 "
		   "--recompute --tf32 --async_save "
		   "--min_lr 1e-5 --lr_schedule warmup --run_name it",
		   1);
	assert_int_equal(c.seed, 7);
	assert_true(c.deterministic && c.async_save && c.recompute && c.tf32);
	assert_int_equal(c.device, DEVICE_CUDA);
	assert_string_equal(c.data, "a.u16");
	assert_true(c.schedule.min_lr == 1e-5 && c.schedule.start_lr == 1e-5);
	assert_string_equal(c.run_name, "it");
	config_done(&c);
}

static void every_flag_is_told_in_the_table(void **state)
{
	(void)state;
	for (size_t i = 0; i < FLAGS; i++) {
		assert_non_null(flags[i].name);
		assert_non_null(strchr(flags[i].help, '\t'));
		assert_true((flags[i].help[0] != '\t') ==
			    flag_takes_value(&flags[i]));
	}
}

static void resuming(void **state)
{
	static const struct {
		const char *line, *from, *tag;
	} cases[] = {
		{ "--resume --checkpoint_dir a", "a", NULL },
		{ "--resume=m --checkpoint_dir a", "m", NULL },
		{ "--checkpoint_tag global_step3 --resume=m", "m",
		  "global_step3" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct config c;

		must_parse(&c, cases[i].line, 1);
		assert_string_equal(c.resume_dir, cases[i].from);
		if (cases[i].tag)
			assert_string_equal(c.checkpoint_tag, cases[i].tag);
		else
			assert_null(c.checkpoint_tag);
		config_done(&c);
	}
	must_fail("--resume", 1, "--resume: from where?");
	must_fail("--checkpoint_tag x", 1, "--checkpoint_tag x");
	must_fail("--resume=a --checkpoint_tag ../x", 1, "without slashes");
}

static void help_and_version_are_answers(void **state)
{
	struct config c;
	struct errmsg err;

	(void)state;
	assert_int_equal(parse(&c, "--help --nonsense", 1, &err), 1);
	assert_int_equal(parse(&c, "--version", 1, &err), 1);
}

static void wrong_flags_are_named_with_their_value(void **state)
{
	static const struct {
		const char *line, *says;
	} cases[] = {
		{ "--nonsense", "--nonsense: no such flag" },
		{ "--steps", "--steps: needs a value" },
		{ "--deterministic=1", "--deterministic=1: takes no value" },
		{ "train", "'train': not a flag" },
		{ "--steps 0", "--steps 0: must be an integer from 1" },
		{ "--steps -1", "--steps -1: must be" },
		{ "--steps 3x", "--steps 3x: must be" },
		{ "--steps 1e3", "--steps 1e3: must be" },
		{ "--steps=", "--steps '': must be" },
		{ "--steps 99999999999999999999", "must be an integer" },
		{ "--lr nan", "--lr nan: must be a number" },
		{ "--lr inf", "--lr inf: must be a number" },
		{ "--lr x", "--lr x: must be a number" },
		{ "--dropout 1", "--dropout 1: must be" },
		{ "--zero_stage 4",
		  "--zero_stage 4: must be an integer from 0 to 3" },
		{ "--dtype int8", "--dtype int8: must be one of fp32 bf16 fp16" },
		{ "--optimizer SGD",
		  "--optimizer SGD: must be one of Adam AdamW" },
		{ "--betas 0.9", "--betas 0.9: must be two numbers" },
		{ "--betas 0.9,1", "--betas 0.9,1: must be two numbers" },
		{ "--betas 0.9,0.9,0.9", "must be two numbers" },
		{ "--model gpt5", "--model: no model is called 'gpt5'" },
		{ "--run_name a/b", "--run_name a/b: must be a name" },
		{ "--run_name ..", "--run_name ..: must be a name" },
		{ "--data=", "--data '': must be not empty" },
		{ "--seq_length 2048", "--seq_length 2048: is more than" },
		{ "--n_head 3", "n_embd 128 is no multiple of n_head 3" },
		{ "--lr_schedule cosine --warmup_steps 200",
		  "--warmup_steps 200: is more than the 100 steps" },
		{ "--lr_schedule cosine --lr 1e-4 --min_lr 1e-3",
		  "--min_lr 0.001: is more than --lr 0.0001" },
		{ "--deepspeed_config none.json", "none.json" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		must_fail(cases[i].line, 1, cases[i].says);
}

/* --- batches --------------------------------------------------------------- */

static void what_is_not_given_of_a_batch_follows(void **state)
{
	static const struct {
		const char *json, *flags;
		unsigned ranks, batch, micro, accumulation;
	} cases[] = {
		{ "{}", "", 1, 16, 4, 4 },
		{ "{}", "", 2, 16, 4, 2 },
		{ "{}", "", 8, 16, 2, 1 },
		{ "{}", "--train_batch_size 6", 2, 6, 3, 1 },
		{ "{}", "--train_micro_batch_size_per_gpu 8", 2, 16, 8, 1 },
		/* As DeepSpeed works them out. */
		{ "{\"train_batch_size\": 32}", "", 2, 32, 16, 1 },
		{ "{\"train_micro_batch_size_per_gpu\": 3}", "", 2, 6, 3, 1 },
		{ "{\"train_batch_size\": 32,"
		  "\"gradient_accumulation_steps\": 4}",
		  "", 2, 32, 4, 4 },
		{ "{\"train_micro_batch_size_per_gpu\": 3,"
		  "\"gradient_accumulation_steps\": 4}",
		  "", 2, 24, 3, 4 },
		{ "{\"gradient_accumulation_steps\": 4}", "", 1, 16, 4, 4 },
		{ "{\"train_batch_size\": \"auto\","
		  "\"train_micro_batch_size_per_gpu\": \"auto\","
		  "\"gradient_accumulation_steps\": \"auto\"}",
		  "", 4, 16, 4, 1 },
		/* Flags win; accumulation gives way. */
		{ "{\"train_batch_size\": 32,"
		  "\"train_micro_batch_size_per_gpu\": 8,"
		  "\"gradient_accumulation_steps\": 2}",
		  "--train_batch_size 64", 2, 64, 8, 4 },
		{ "{\"train_batch_size\": 32}",
		  "--train_micro_batch_size_per_gpu 4", 2, 32, 4, 4 },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct config c;

		must_parse(&c, with_json(cases[i].json, cases[i].flags),
			   cases[i].ranks);
		assert_int_equal(c.batch, cases[i].batch);
		assert_int_equal(c.micro_batch, cases[i].micro);
		assert_int_equal(c.accumulation, cases[i].accumulation);
		config_done(&c);
	}
}

static void impossible_batches_are_told_with_what_would_work(void **state)
{
	static const struct {
		const char *json, *flags;
		unsigned ranks;
		const char *says;
	} cases[] = {
		{ "{}", "", 3,
		  "--train_batch_size 16: is no multiple of 3"
		  " ranks; 15 or 18 would work" },
		{ "{}", "--train_micro_batch_size_per_gpu 3", 2,
		  "2 ranks x --train_micro_batch_size_per_gpu 3; 12 or 18" },
		{ "{}", "--train_batch_size 2", 4, "ranks; 4 would work" },
		{ "{\"train_batch_size\": 32, "
		  "\"gradient_accumulation_steps\": 3}",
		  "", 2, "gradient_accumulation_steps 3; 30 or 36 would work" },
		{ "{\"train_batch_size\": 32, "
		  "\"train_micro_batch_size_per_gpu\": 8, "
		  "\"gradient_accumulation_steps\": 1}",
		  "", 2,
		  "--train_batch_size 32: is not 2 ranks"
		  " x --train_micro_batch_size_per_gpu 8"
		  " x gradient_accumulation_steps 1 = 16" },
		{ "{\"gradient_accumulation_steps\": 4000000, "
		  "\"train_micro_batch_size_per_gpu\": 4000000}",
		  "", 4000, "too large" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		must_fail(with_json(cases[i].json, cases[i].flags),
			  cases[i].ranks, cases[i].says);
}

/* --- DeepSpeed's configuration --------------------------------------------- */

static void a_configuration_is_taken_over(void **state)
{
	static const char json[] =
		"{\"train_batch_size\": 8, \"steps_per_print\": 10,\n"
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

	(void)state;
	must_parse(&c, with_json(json, ""), 2);
	assert_int_equal(c.batch, 8);
	assert_true(c.gradient_clipping == 0.5);
	assert_int_equal(c.dtype, DTYPE_BF16);
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
	char line[LINE_MAX_LEN];

	(void)state;
	snprintf(line, sizeof(line), "--zero_stage 2 %s",
		 with_json("{\"zero_optimization\": {\"stage\": 3}}",
			   "--lr 1e-2"));
	must_parse(&c, line, 1);
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
		{ "{\"optimizer\": {\"type\": \"Adam\"}}", OPTIMIZER_ADAMW,
		  OPTIMIZER_APEX, 1e-3, 0 },
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct config c;

		must_parse(&c, with_json(cases[i].json, ""), 1);
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
		struct scaler_config want;
	} cases[] = {
		{ "{\"fp16\": {\"enabled\": true}}",
		  "",
		  { 65536, true, 1000, 2, 1 } },
		{ "{\"fp16\": {\"enabled\": true, \"loss_scale\": 128}}",
		  "",
		  { 128, false, 1000, 2, 1 } },
		{ "{\"fp16\": {\"enabled\": true, \"loss_scale\": 0,"
		  "\"initial_scale_power\": 12, \"loss_scale_window\": 50,"
		  "\"hysteresis\": 3, \"min_loss_scale\": 4}}",
		  "",
		  { 4096, true, 50, 3, 4 } },
		{ "{\"fp16\": {\"enabled\": true}}",
		  "--dtype fp32",
		  { 0, false, 0, 0, 0 } },
		{ "{\"fp16\": {\"enabled\": false}}", "", { 0, false, 0, 0, 0 } },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct scaler_config *const want = &cases[i].want;
		struct config c;

		must_parse(&c, with_json(cases[i].json, cases[i].flags), 1);
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
		struct schedule_config want;
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

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct schedule_config *const want = &cases[i].want;
		struct config c;

		must_parse(&c, with_json(cases[i].json, cases[i].flags), 1);
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
		{ "{\"train_batch_size\": 8,\n  oops}",
		  "near line 2, column 4: no valid JSON" },
		{ "{} {}", "line 1, column 4: no valid JSON" },
		{ "[1]", "is no JSON object" },
		{ "{\"train_batch_size\": 1.5}",
		  "train_batch_size must be an integer from 1" },
		{ "{\"train_batch_size\": \"many\"}", "must be an integer" },
		{ "{\"train_batch_size\": -4}", "must be an integer" },
		{ "{\"train_batch_size\": 1e300}", "must be an integer" },
		{ "{\"zero_optimization\": {\"stage\": 4}}",
		  "zero_optimization.stage must be an integer from 0 to 3" },
		{ "{\"zero_optimization\": 1}",
		  "zero_optimization must be an object" },
		{ "{\"bf16\": {\"enabled\": 1}}",
		  "bf16.enabled must be true or false" },
		{ "{\"bf16\": {\"enabled\": true}, \"fp16\": {\"enabled\": true}}",
		  "bf16 and fp16 are both enabled" },
		{ "{\"optimizer\": {\"type\": \"Lion\"}}",
		  "optimizer.type must be Adam or AdamW" },
		{ "{\"optimizer\": {\"params\": {\"betas\": [1, 2, 3]}}}",
		  "optimizer.params.betas must be two numbers" },
		{ "{\"scheduler\": {\"type\": \"OneCycle\"}}",
		  "scheduler.type must be WarmupLR" },
		{ "{\"fp16\": {\"consecutive_hysteresis\": true}}",
		  "uctrain has no fp16.consecutive_hysteresis" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++)
		must_fail(with_json(cases[i].json, ""), 1, cases[i].says);
}

/* What is printed on stderr, which is a file meanwhile. */
static void unknown_keys_are_warned_of(void **state)
{
	const char *const line = with_json(
		"{\"steps_per_print\": 1, \"zero_optimization\": {\"stage\": 1,"
		"\"overlap_com\": true, \"reduce_bucket_size\": 5e8},"
		"\"tensorboard\": {\"enabled\": true}, \"train_bach_size\": 3,"
		"\"zero_allow_untested_optimizer\": true}",
		"");
	char path[PATH_MAX], said[256] = "";
	char copy[LINE_MAX_LEN];
	struct config c;
	FILE *saved;

	(void)state;
	snprintf(path, sizeof(path), "%s/stderr", dir);
	snprintf(copy, sizeof(copy), "%s", line);
	char *argv[] = { "uctrain", strtok(copy, " "), strtok(NULL, " "), NULL };

	saved = stderr;
	stderr = fopen(path, "w+");
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

static int set_up(void **state)
{
	(void)state;
	dir = mkckpt_new_dir();
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	mkckpt_free_dir(dir);
	return 0;
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_the_demos),
		cmocka_unit_test(flags_set_what_they_say),
		cmocka_unit_test(every_flag_is_told_in_the_table),
		cmocka_unit_test(resuming),
		cmocka_unit_test(help_and_version_are_answers),
		cmocka_unit_test(wrong_flags_are_named_with_their_value),
		cmocka_unit_test(what_is_not_given_of_a_batch_follows),
		cmocka_unit_test(
			impossible_batches_are_told_with_what_would_work),
		cmocka_unit_test(a_configuration_is_taken_over),
		cmocka_unit_test(flags_win_wherever_they_stand),
		cmocka_unit_test(deepspeeds_kinds_of_adam),
		cmocka_unit_test(loss_scales),
		cmocka_unit_test(schedules),
		cmocka_unit_test(wrong_configurations_are_refused),
		cmocka_unit_test(unknown_keys_are_warned_of),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
