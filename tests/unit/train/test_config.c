/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines: valid ones with the resulting configuration, and invalid ones with their
 * message. */
#include <string.h>

#include "gpu/config/config_impl.h"
#include "gpu/model/network.h"
#include "tests/support/commandline.h"
#include "tests/support/unit.h"

static void defaults_are_the_demos(void **state)
{
	struct config c;

	line_is_taken(&c, "", 4);
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

/* Megatron-DeepSpeed has a pipeline engine only in stages 0 and 1; it does not decay biases and
 * norms, and nothing in stage 3. */
static void names_follow_the_stage(void **state)
{
	struct config c;

	line_is_taken(&c, "", 1);
	assert_int_equal(c.naming.family, NAMING_HF);
	assert_int_equal(c.optimizer.decay, DECAY_ALL);
	config_done(&c);
	line_is_taken(&c, "--names megatron", 1);
	assert_int_equal(c.naming.family, NAMING_MEGATRON);
	assert_int_equal(c.naming.qkv, NAMING_QKV_THIRDS);
	assert_int_equal(c.optimizer.decay, DECAY_MATRICES);
	config_done(&c);
	line_is_taken(&c, "--names megatron --zero_stage 2 --qkv_order by_head", 2);
	assert_int_equal(c.naming.family, NAMING_MEGATRON_MODEL);
	assert_int_equal(c.naming.qkv, NAMING_QKV_HEADS);
	config_done(&c);
	line_is_taken(&c, "--names megatron --zero_stage 0", 2);
	assert_int_equal(c.naming.family, NAMING_MEGATRON);
	config_done(&c);
	line_is_taken(&c, "--names megatron --zero_stage 0 --dtype bf16", 2);
	assert_int_equal(c.naming.family, NAMING_MEGATRON_MODEL);
	config_done(&c);
	line_is_taken(&c, "--names megatron --zero_stage 3", 2);
	assert_int_equal(c.naming.family, NAMING_MEGATRON_MODEL);
	assert_int_equal(c.optimizer.decay, DECAY_NONE);
	config_done(&c);
}

static void flags_set_what_they_say(void **state)
{
	struct config c;

	line_is_taken(&c,
		      "--n_layer 2 --model gpt2-medium --dropout 0.1 --betas 0.8,0.95 "
		      "--dtype fp16 --optimizer Adam --lr_schedule cosine --warmup_steps 10 "
		      "--eps 1e-6",
		      1);
	assert_int_equal(c.model.n_layer, 2);
	assert_int_equal(c.model.n_embd, 1024);
	assert_true(c.model.dropout == 0.1f);
	assert_true(c.optimizer.beta1 == 0.8 && c.optimizer.beta2 == 0.95);
	assert_true(c.optimizer.eps == 1e-6);
	assert_int_equal(c.dtype, DTYPE_F16);
	assert_int_equal(c.optimizer.kind, OPTIMIZER_ADAM);
	assert_int_equal(c.schedule.kind, SCHEDULE_COSINE);
	assert_int_equal(c.schedule.warmup, 10);
	assert_false(c.schedule.log_warmup);
	assert_true(c.scaler.dynamic && c.scaler.initial == 65536);
	assert_string_equal(c.run_name, "gpt2-medium_tp1_pp1_dp1_sp1");
	config_done(&c);

	line_is_taken(&c, "--tensor_model_parallel_size 2 --train_batch_size 6", 6);
	assert_int_equal(c.data_parallel, 3);
	assert_int_equal(c.micro_batch * c.accumulation, 2);
	assert_string_equal(c.run_name, "gpt2-dsuc_tp2_pp1_dp3_sp1");
	config_done(&c);

	line_is_taken(&c,
		      "--seed 7 --deterministic --device cuda --data=a.u16 "
		      "--recompute --tf32 --async_save "
		      "--comm_timeout 9 "
		      "--peak_tflops 0.5 "
		      "--min_lr 1e-5 --lr_schedule warmup --run_name it",
		      1);
	assert_int_equal(c.seed, 7);
	assert_true(c.deterministic && c.async_save && c.tf32);
	assert_int_equal(c.recompute, RECOMPUTE_BLOCKS);
	assert_int_equal(c.device, DEVICE_CUDA);
	assert_string_equal(c.data, "a.u16");
	assert_int_equal(c.comm_timeout, 9);
	assert_true(c.peak_tflops == 0.5);
	assert_true(c.schedule.min_lr == 1e-5 && c.schedule.start_lr == 1e-5);
	assert_string_equal(c.run_name, "it");
	config_done(&c);
}

static void what_is_recomputed(void **state)
{
	static const struct {
		const char *line;
		unsigned what;
	} cases[] = {
		{ "", 0 },
		{ "--recompute", RECOMPUTE_BLOCKS },
		{ "--recompute=blocks", RECOMPUTE_BLOCKS },
		{ "--recompute=gelu", RECOMPUTE_GELU },
		{ "--recompute=norms --steps 3", RECOMPUTE_NORMS },
		{ "--recompute=gelu,norms", RECOMPUTE_GELU | RECOMPUTE_NORMS },
	};
	struct config c;

	for (size_t i = 0; i < COUNT(cases); i++) {
		line_is_taken(&c, cases[i].line, 1);
		assert_int_equal(c.recompute, cases[i].what);
		config_done(&c);
	}
}

static void every_setting_has_a_flag_or_a_key(void **state)
{
	for (size_t i = 0; i < SETTINGS; i++) {
		const struct setting *s = &settings[i];

		if (s->kind == SETTING_GROUP) {
			assert_non_null(s->help);
			continue;
		}
		assert_true(s->flag || s->key);
		assert_true(!s->flag == !s->help);
		if (s->flag)
			assert_true((s->help[*s->help == '+'] != '\t') ==
				    (setting_takes_value(s) || setting_value_is_optional(s)));
		if (s->flag && setting_takes_value(s))
			assert_non_null(strchr(s->help, '\t'));
	}
}

/* The flags that --help shows under a heading. */
static void flags_come_in_groups(void **state)
{
	static const char *const groups[] = { "Model",      "Data",   "Training", "Parallel",
					      "Checkpoint", "Output", "Advanced" };
	size_t n = 0;

	assert_int_equal(settings[0].kind, SETTING_GROUP);
	for (size_t i = 0; i < SETTINGS; i++)
		if (settings[i].kind == SETTING_GROUP) {
			assert_true(n < COUNT(groups));
			assert_string_equal(settings[i].help, groups[n++]);
			assert_non_null(settings[i + 1].flag);
		}
	assert_int_equal(n, COUNT(groups));
}

static void partition_methods(void **state)
{
	static const struct {
		const char *line;
		enum gpt2_partition what;
	} cases[] = {
		{ "", GPT2_PARTITION_PARAMETERS },
		{ "--partition_method parameters", GPT2_PARTITION_PARAMETERS },
		{ "--partition_method uniform", GPT2_PARTITION_UNIFORM },
		{ "--partition_method type:transformer", GPT2_PARTITION_BLOCKS },
	};
	struct config c;

	for (size_t i = 0; i < COUNT(cases); i++) {
		line_is_taken(&c, cases[i].line, 1);
		assert_int_equal(c.partition, cases[i].what);
		config_done(&c);
	}
}

static void resuming(void **state)
{
	static const struct {
		const char *line, *from, *tag;
	} cases[] = {
		{ "--resume --checkpoint_dir a", "a", NULL },
		{ "--resume=m --checkpoint_dir a", "m", NULL },
		{ "--checkpoint_tag global_step3 --resume=m", "m", "global_step3" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct config c;

		line_is_taken(&c, cases[i].line, 1);
		assert_string_equal(c.resume_dir, cases[i].from);
		if (cases[i].tag)
			assert_string_equal(c.checkpoint_tag, cases[i].tag);
		else
			assert_null(c.checkpoint_tag);
		config_done(&c);
	}
	line_is_refused("--resume", 1, "--resume: from where?");
	line_is_refused("--checkpoint_tag x", 1, "--checkpoint_tag x");
	line_is_refused("--resume=a --checkpoint_tag ../x", 1, "without slashes");
}

static void help_and_version_are_answers(void **state)
{
	struct config c;
	struct errmsg err;

	assert_int_equal(line_parse(&c, "--help --nonsense", 1, &err), 1);
	assert_int_equal(line_parse(&c, "-h", 1, &err), 1);
	assert_int_equal(line_parse(&c, "--help=all", 1, &err), 1);
	line_is_refused("--help=model", 1, "--help=model: must be all");
	assert_int_equal(line_parse(&c, "--version", 1, &err), 1);
}

static void wrong_flags_are_named_with_their_value(void **state)
{
	static const struct {
		const char *line, *says;
	} cases[] = {
		{ "--nonsense", "--nonsense: unknown option (" },
		{ "--stesp 3", "--stesp: unknown option; did you mean --steps?" },
		{ "--checkpoint x", "--checkpoint: is ambiguous: --checkpoint_" },
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
		{ "--eps 2", "--eps 2: must be a number from 0 to 1" },
		{ "--partition_method layers",
		  "--partition_method layers: must be parameters, uniform or type:transformer" },
		{ "--names megatron --zero_stage 0 --dtype fp16",
		  "--names megatron: --zero_stage 0 does not go with fp16, whose gradients DeepSpeed divides by a loss scale that they do not have; use --zero_stage 1" },
		{ "--names llama", "--names llama: must be hf or megatron" },
		{ "--zero_stage 4", "--zero_stage 4: must be an integer from 0 to 3" },
		{ "--dtype int8", "--dtype int8: must be fp32, bf16 or fp16" },
		{ "--reduce_at_boundary --zero_stage 3",
		  "--reduce_at_boundary: does not go with --zero_stage 3; use 2" },
		{ "--communication_data_type fp8",
		  "--communication_data_type fp8: must be fp32, bf16 or fp16" },
		{ "--communication_data_type bf16 --rank_invariant",
		  "--rank_invariant: does not go with --communication_data_type bf16" },
		{ "--optimizer SGD", "--optimizer SGD: must be Adam or AdamW" },
		{ "--betas 0.9", "--betas 0.9: must be two numbers" },
		{ "--betas 0.9,1", "--betas 0.9,1: must be two numbers" },
		{ "--betas 0.9,0.9,0.9", "must be two numbers" },
		{ "--model gpt5", "--model: unknown model 'gpt5'" },
		{ "--run_name a/b", "--run_name a/b: must be a name" },
		{ "--run_name ..", "--run_name ..: must be a name" },
		{ "--data=", "--data '': must be a string that is not empty" },
		{ "--seq_length 2048", "--seq_length 2048: is more than" },
		{ "--n_head 3", "n_embd 128 is not a multiple of n_head 3" },
		{ "--lr_schedule cosine --warmup_steps 200",
		  "--warmup_steps 200: is more than the 100 steps" },
		{ "--lr_schedule cosine --lr 1e-4 --min_lr 1e-3",
		  "--min_lr 0.001: is more than --lr 0.0001" },
		{ "--deepspeed_config none.json", "none.json" },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		line_is_refused(cases[i].line, 1, cases[i].says);
}

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
		/* derived as DeepSpeed does */
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
		/* Flags override the file; accumulation is derived. */
		{ "{\"train_batch_size\": 32,"
		  "\"train_micro_batch_size_per_gpu\": 8,"
		  "\"gradient_accumulation_steps\": 2}",
		  "--train_batch_size 64", 2, 64, 8, 4 },
		{ "{\"train_batch_size\": 32}", "--train_micro_batch_size_per_gpu 4", 2, 32, 4, 4 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct config c;

		line_is_taken(&c, line_with_json(cases[i].json, cases[i].flags), cases[i].ranks);
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
		  "--train_batch_size 16: is not a multiple of 3"
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

	for (size_t i = 0; i < COUNT(cases); i++)
		line_is_refused(line_with_json(cases[i].json, cases[i].flags), cases[i].ranks,
				cases[i].says);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_follow_the_stage),
		cmocka_unit_test(defaults_are_the_demos),
		cmocka_unit_test(flags_set_what_they_say),
		cmocka_unit_test(what_is_recomputed),
		cmocka_unit_test(every_setting_has_a_flag_or_a_key),
		cmocka_unit_test(flags_come_in_groups),
		cmocka_unit_test(partition_methods),
		cmocka_unit_test(resuming),
		cmocka_unit_test(help_and_version_are_answers),
		cmocka_unit_test(wrong_flags_are_named_with_their_value),
		cmocka_unit_test(what_is_not_given_of_a_batch_follows),
		cmocka_unit_test(impossible_batches_are_told_with_what_would_work),
	};

	return cmocka_run_group_tests(tests, lines_set_up, lines_tear_down);
}
