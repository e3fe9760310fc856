# `make check`: unit tests, mounted cases, and the rules of the house.  To add
# a unit, write tests/unit/ROOM/test_NAME.c and name it in unit_tests; to add a case,
# name its script in scripts.  Exit status 77 means skipped.

unit_tests = \
	%D%/unit/base/test_parallel \
	%D%/unit/base/test_sigbus \
	%D%/unit/base/test_copy_nt \
	%D%/unit/base/test_crc32 \
	%D%/unit/base/test_tensor \
	%D%/unit/base/test_cast \
	%D%/unit/base/test_arith \
	%D%/unit/format/test_zip \
	%D%/unit/base/test_pickle \
	%D%/unit/base/test_pickle_write \
	%D%/unit/format/test_legacy \
	%D%/unit/format/test_legacy_bad \
	%D%/unit/format/test_safetensors \
	%D%/unit/format/test_hfdir \
	%D%/unit/format/test_serialization_id \
	%D%/unit/format/test_ptwrite \
	%D%/unit/format/test_names \
	%D%/unit/model/test_merge_rules \
	%D%/unit/model/test_merge_rules_parts \
	%D%/unit/model/test_geometry \
	%D%/unit/model/test_geometry_bad \
	%D%/unit/model/test_geometry_random \
	%D%/unit/plan/test_partition \
	%D%/unit/vfile/test_extent \
	%D%/unit/vfile/test_gather \
	%D%/unit/vfile/test_shardcache \
	%D%/unit/base/test_scratch \
	%D%/unit/vfile/test_vfile \
	%D%/unit/vfile/test_vfile_crc \
	%D%/unit/vfile/test_vfile_read_all \
	%D%/unit/plan/test_shared_ranges \
	%D%/unit/plan/test_state \
	%D%/unit/plan/test_plan \
	%D%/unit/model/test_model \
	%D%/unit/plan/test_computed \
	%D%/unit/model/test_experts \
	%D%/unit/plan/test_index \
	%D%/unit/plan/test_index_lies \
	%D%/unit/plan/test_indexfile \
	%D%/unit/fs/test_predictor \
	%D%/unit/fs/test_stats \
	%D%/unit/plan/test_bad \
	%D%/unit/plan/test_bad_ranks \
	%D%/unit/plan/test_good \
	%D%/unit/plan/test_weights_split \
	%D%/unit/format/test_safetensors_write \
	%D%/unit/plan/test_weights \
	%D%/unit/base/test_outdir \
	%D%/unit/plan/test_property
%C%_unit_format_test_legacy_SOURCES = %D%/unit/format/test_legacy.c $(mklegacy)
%C%_unit_format_test_legacy_bad_SOURCES = %D%/unit/format/test_legacy_bad.c $(mklegacy)
%C%_unit_model_test_merge_rules_SOURCES = %D%/unit/model/test_merge_rules.c $(rules)
%C%_unit_model_test_merge_rules_parts_SOURCES = %D%/unit/model/test_merge_rules_parts.c $(rules)
%C%_unit_model_test_geometry_SOURCES = %D%/unit/model/test_geometry.c $(slices)
%C%_unit_model_test_geometry_bad_SOURCES = %D%/unit/model/test_geometry_bad.c $(slices)
%C%_unit_model_test_geometry_random_SOURCES = %D%/unit/model/test_geometry_random.c $(slices)
%C%_unit_model_test_experts_SOURCES = %D%/unit/model/test_experts.c $(slices)
%C%_unit_vfile_test_vfile_SOURCES = %D%/unit/vfile/test_vfile.c $(made)
%C%_unit_vfile_test_vfile_crc_SOURCES = %D%/unit/vfile/test_vfile_crc.c $(made)
%C%_unit_vfile_test_vfile_read_all_SOURCES = %D%/unit/vfile/test_vfile_read_all.c $(made)
%C%_unit_plan_test_shared_ranges_SOURCES = %D%/unit/plan/test_shared_ranges.c $(made)
%C%_unit_plan_test_index_SOURCES = %D%/unit/plan/test_index.c $(indexed)
%C%_unit_plan_test_index_lies_SOURCES = %D%/unit/plan/test_index_lies.c $(indexed)
%C%_unit_fs_test_predictor_SOURCES = %D%/unit/fs/test_predictor.c fs/backing/predictor.c
%C%_unit_fs_test_stats_SOURCES = %D%/unit/fs/test_stats.c fs/log/stats.c
%C%_unit_plan_test_bad_SOURCES = \
	%D%/unit/plan/test_bad.c \
	%D%/unit/plan/bad.h \
	%D%/unit/plan/bad_experts.c \
	%D%/unit/plan/bad_files.c \
	%D%/unit/plan/bad_model.c \
	%D%/unit/plan/bad_optim.c

# What several of them share.
apart = \
	%D%/support/apart.h %D%/support/apart.c \
	%D%/support/hostbackend.h %D%/support/hostbackend.c
commandline = %D%/support/commandline.h %D%/support/commandline.c
indexed = %D%/support/indexed.h %D%/support/indexed.c
made = %D%/support/made.h %D%/support/made.c
mklegacy = %D%/make/mklegacy.h %D%/make/mklegacy.c
rules = %D%/support/rules.h %D%/support/rules.c
slices = %D%/support/slices.h %D%/support/slices.c

# Those that take longest first: two run at a time, and none should be left over.
scripts = \
	%D%/cases/train/load.sh \
	%D%/cases/train/invariant.sh \
	%D%/cases/train/cuda_ranks.sh \
	%D%/cases/train/reshape.sh \
	%D%/cases/train/resume.sh \
	%D%/cases/train/deepspeed.sh \
	%D%/cases/train/errors.sh \
	%D%/cases/train/save.sh \
	%D%/cases/train/weights.sh \
	%D%/cases/train/accumulate.sh \
	%D%/cases/train/hf.sh \
	%D%/cases/train/mount.sh \
	%D%/cases/train/cuda.sh \
	%D%/cases/train/gds.sh \
	%D%/cases/train/cudnn.sh \
	%D%/cases/train/zero.sh \
	%D%/lint/layers.sh \
	%D%/lint/headers.sh \
	%D%/cases/mount/tree.sh \
	%D%/cases/mount/run.sh \
	%D%/cases/mount/torch.sh \
	%D%/cases/mount/weights.sh \
	%D%/cases/mount/hfdir.sh \
	%D%/cases/mount/tools.sh \
	%D%/cases/mount/errors.sh \
	%D%/cases/mount/backed.sh \
	%D%/cases/mount/unprivileged.sh \
	%D%/cases/mount/mapped.sh \
	%D%/cases/mount/lifecycle.sh \
	%D%/cases/mount/index.sh \
	%D%/cases/mount/valgrind.sh \
	%D%/cases/mount/example_extents.sh \
	%D%/cases/mount/demo.sh \
	%D%/lint/man_layouts.sh \
	%D%/cases/ucckpt/info.sh \
	%D%/cases/ucckpt/check.sh \
	%D%/cases/ucckpt/convert.sh \
	%D%/cases/ucckpt/convert_fail.sh \
	%D%/cases/ucckpt/diff.sh \
	%D%/cases/ucckpt/extents.sh \
	%D%/cases/train/ucplot.sh

# Units of the trainer.
train_tests = \
	%D%/unit/train/test_gpt2 \
	%D%/unit/train/test_optimizer \
	%D%/unit/train/test_init_weights \
	%D%/unit/train/test_stop \
	%D%/unit/train/test_pt_head \
	%D%/unit/train/test_cpu_math \
	%D%/unit/train/test_cpu_elementwise \
	%D%/unit/train/test_cpu_ops \
	%D%/unit/train/test_cpu_grad \
	%D%/unit/train/test_network \
	%D%/unit/train/test_upload \
	%D%/unit/train/test_rng \
	%D%/unit/train/test_config \
	%D%/unit/train/test_config_json \
	%D%/unit/train/test_tokens \
	%D%/unit/train/test_tbevents \
	%D%/unit/train/test_metrics
train_ldadd = %D%/libmk.a $(train_libs) $(CMOCKA_LIBS) $(NETTLE_LIBS)
%C%_unit_train_test_gpt2_LDADD = $(train_ldadd)
%C%_unit_train_test_rng_LDADD = $(train_ldadd)
%C%_unit_train_test_config_SOURCES = %D%/unit/train/test_config.c $(commandline)
%C%_unit_train_test_config_LDADD = $(train_ldadd)
%C%_unit_train_test_config_json_SOURCES = %D%/unit/train/test_config_json.c $(commandline)
%C%_unit_train_test_config_json_LDADD = $(train_ldadd)
%C%_unit_train_test_tokens_LDADD = $(train_ldadd)
%C%_unit_train_test_tbevents_LDADD = $(train_ldadd)
%C%_unit_train_test_metrics_LDADD = $(train_ldadd)
%C%_unit_train_test_init_weights_LDADD = $(train_ldadd)
%C%_unit_train_test_stop_LDADD = $(train_ldadd)
%C%_unit_train_test_pt_head_LDADD = $(train_ldadd)
%C%_unit_train_test_cpu_math_LDADD = $(train_ldadd)
%C%_unit_train_test_cpu_elementwise_SOURCES = \
	%D%/unit/train/test_cpu_elementwise.c \
	%D%/support/hostbackend.h %D%/support/hostbackend.c
%C%_unit_train_test_cpu_elementwise_LDADD = $(train_ldadd)
%C%_unit_train_test_cpu_ops_SOURCES = \
	%D%/unit/train/test_cpu_ops.c \
	%D%/support/numbers.h %D%/support/numbers.c
%C%_unit_train_test_cpu_ops_LDADD = $(train_ldadd)
%C%_unit_train_test_cpu_grad_LDADD = $(train_ldadd)
%C%_unit_train_test_network_SOURCES = \
	%D%/unit/train/test_network.c \
	%D%/support/numbers.h %D%/support/numbers.c \
	%D%/support/whole.h %D%/support/whole.c
%C%_unit_train_test_network_LDADD = $(train_ldadd)
%C%_unit_train_test_optimizer_LDADD = $(train_ldadd)
%C%_unit_train_test_upload_SOURCES = %D%/unit/train/test_upload.c %D%/support/openfiles.h $(apart)
%C%_unit_train_test_upload_LDADD = $(train_ldadd)

# The CUDA backend without a GPU: its kernels compiled as C++, with headers and
# a runtime that emulate CUDA.  test_cuda is the same test on a GPU.
cuda_tests =
cuda_programs =
cuda_test_sources = \
	%D%/unit/train/test_cuda.c %D%/support/sides.h %D%/support/sides.c \
	%D%/support/ops.h %D%/support/ops.c
if HAVE_CXX
cuda_tests += %D%/unit/train/test_cuda_emulated %D%/unit/train/test_gds
cuda_programs += %D%/programs/uctrain_emulated
endif
if HAVE_CUDA
cuda_tests += %D%/unit/train/test_cuda
endif
if HAVE_CUDNN
cuda_programs += %D%/programs/cudnn_plans
endif
%C%_programs_cudnn_plans_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
%C%_programs_cudnn_plans_LDADD = $(train_libs)
%C%_unit_train_test_cuda_SOURCES = $(cuda_test_sources)
%C%_unit_train_test_cuda_LDADD = $(train_ldadd)
%C%_unit_train_test_cuda_emulated_SOURCES = $(cuda_test_sources)
%C%_unit_train_test_cuda_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS) \
	-DCUDA_EMULATED
%C%_unit_train_test_cuda_emulated_LDADD = $(cudaemu_libs) $(train_ldadd)
%C%_unit_train_test_cuda_emulated_LDFLAGS = $(cudaemu_ldflags)
%C%_unit_train_test_gds_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
%C%_unit_train_test_gds_LDADD = $(cudaemu_libs) $(train_ldadd)
%C%_unit_train_test_gds_LDFLAGS = $(cudaemu_ldflags)
%C%_programs_uctrain_emulated_SOURCES = gpu/main.c %D%/cudaemu/cudaemu_nccl.c
%C%_programs_uctrain_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
%C%_programs_uctrain_emulated_LDADD = $(cudaemu_libs) $(train_libs)
%C%_programs_uctrain_emulated_LDFLAGS = $(cudaemu_ldflags)

cudaemu_kernels = \
	%D%/cudaemu/cuda_elementwise.o %D%/cudaemu/cuda_embed.o \
	%D%/cudaemu/cuda_norm.o %D%/cudaemu/cuda_linear.o \
	%D%/cudaemu/cuda_cross_entropy.o %D%/cudaemu/cuda_attention.o \
	%D%/cudaemu/cuda_attention_mma.o
cudaemu_libs = $(cudaemu_kernels) %D%/libcudaemu.a
cudaemu_includes = -I$(top_srcdir)/%D%/cudaemu
# Where an emulated cuFile finds files, cudaemu_cufile.h.
cudaemu_ldflags = $(AM_LDFLAGS) -Wl,--wrap=fstatfs,--wrap=mincore
cudaemu_cxxflags = -std=c++17 -pthread $(UCFS_CFLAGS) -fno-strict-aliasing \
	-Wno-unknown-pragmas -fno-exceptions -fno-rtti -fno-threadsafe-statics
EXTRA_LIBRARIES = %D%/libcudaemu.a
%C%_libcudaemu_a_SOURCES = \
	$(cuda_sources) $(cufile_sources) $(cudnn_sources) \
	%D%/cudaemu/cuda_runtime.h %D%/cudaemu/cuda_runtime_api.h \
	%D%/cudaemu/cublasLt.h %D%/cudaemu/cufile.h \
	%D%/cudaemu/cudnn.h \
	%D%/cudaemu/gpu/cuda/cuda_launch.cuh %D%/cudaemu/gpu/cuda/cuda_ptx.cuh \
	%D%/cudaemu/cudaemu.h %D%/cudaemu/cudaemu.cc \
	%D%/cudaemu/cudaemu_api.c %D%/cudaemu/cudaemu_lt.c \
	%D%/cudaemu/cudaemu_cufile.h %D%/cudaemu/cudaemu_cufile.c \
	%D%/cudaemu/cudaemu_cudnn.h %D%/cudaemu/cudaemu_cudnn.c \
	%D%/cudaemu/cudaemu_cudnn_impl.h %D%/cudaemu/cudaemu_cudnn_ops.c \
	%D%/cudaemu/cudaemu_types.c
%C%_libcudaemu_a_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
%C%_libcudaemu_a_CXXFLAGS = $(cudaemu_cxxflags)
CLEANFILES += $(cudaemu_kernels) $(cudaemu_kernels:.o=.d) %D%/libcudaemu.a
%D%/cudaemu/%.o: gpu/cuda/%.cu
	$(AM_V_CXX)$(MKDIR_P) $(@D) && \
	$(CXX) $(cudaemu_cxxflags) $(CXXFLAGS) $(cudaemu_includes) \
		-I$(top_srcdir) -MD -MF $(@:.o=.d) -x c++ -c -o $@ $<
-include $(cudaemu_kernels:.o=.d)

# What cases run on several ranks.
train_programs = \
	%D%/programs/ranks_zero \
	%D%/programs/ranks_nccl \
	%D%/programs/ranks_checkpoint
%C%_programs_ranks_checkpoint_SOURCES = %D%/programs/ranks_checkpoint.c $(apart)
%C%_programs_ranks_checkpoint_LDADD = $(train_libs)
%C%_programs_ranks_zero_SOURCES = %D%/programs/ranks_zero.c $(apart)
%C%_programs_ranks_zero_LDADD = $(train_libs)
%C%_programs_ranks_nccl_SOURCES = %D%/programs/ranks_zero.c $(apart) %D%/cudaemu/ncclemu.c \
	gpu/nvidia/nccl_api.h gpu/comm/devcomm_nccl.c
%C%_programs_ranks_nccl_CPPFLAGS = -I$(top_srcdir)/%D%/cudaemu $(AM_CPPFLAGS) \
	$(MPI_CFLAGS)
%C%_programs_ranks_nccl_LDADD = $(train_libs)

# What `make bench` measures training steps with, and what tells where the time of
# one goes on a GPU.
train_bench = %D%/bench/trainstep %D%/bench/gpuops
%C%_bench_gpuops_LDADD = $(train_libs)
%C%_bench_trainstep_SOURCES = \
	%D%/bench/trainstep.c \
	%D%/support/whole.h %D%/support/whole.c
%C%_bench_trainstep_LDADD = $(train_libs)
%C%_bench_trainstep_LDFLAGS = $(AM_LDFLAGS) -Wl,--wrap=dnnl_sgemm
%C%_bench_trainstep_CFLAGS = $(AM_CFLAGS) $(OPENMP_CFLAGS)

# Fuzz targets, one fuzz/fuzz_NAME.c each; --enable-fuzz builds them instead
# of the unit tests.  Otherwise each is linked into a program that runs it on
# its corpus, fuzz/corpus/NAME.
fuzz_targets = \
	%D%/fuzz/fuzz_zip \
	%D%/fuzz/fuzz_pickle \
	%D%/fuzz/fuzz_ptfile \
	%D%/fuzz/fuzz_safetensors \
	%D%/fuzz/fuzz_hfindex \
	%D%/fuzz/fuzz_plan \
	%D%/fuzz/fuzz_planindex \
	%D%/fuzz/fuzz_events \
	%D%/fuzz/fuzz_index
events_sources = gpu/metrics/tfrecord.c gpu/metrics/tbevents_read.c
%C%_fuzz_fuzz_events_SOURCES = %D%/fuzz/fuzz_events.c $(events_sources)
%C%_fuzz_fuzz_index_SOURCES = %D%/fuzz/fuzz_index.c gpu/data/tokens_index.c

replays = \
	%D%/fuzz/replay_zip \
	%D%/fuzz/replay_pickle \
	%D%/fuzz/replay_ptfile \
	%D%/fuzz/replay_safetensors \
	%D%/fuzz/replay_hfindex \
	%D%/fuzz/replay_plan \
	%D%/fuzz/replay_planindex \
	%D%/fuzz/replay_events \
	%D%/fuzz/replay_index
%C%_fuzz_replay_zip_SOURCES = %D%/fuzz/replay.c %D%/fuzz/fuzz_zip.c
%C%_fuzz_replay_pickle_SOURCES = %D%/fuzz/replay.c %D%/fuzz/fuzz_pickle.c
%C%_fuzz_replay_ptfile_SOURCES = %D%/fuzz/replay.c %D%/fuzz/fuzz_ptfile.c
%C%_fuzz_replay_safetensors_SOURCES = \
	%D%/fuzz/replay.c %D%/fuzz/fuzz_safetensors.c
%C%_fuzz_replay_hfindex_SOURCES = \
	%D%/fuzz/replay.c %D%/fuzz/fuzz_hfindex.c
%C%_fuzz_replay_plan_SOURCES = %D%/fuzz/replay.c %D%/fuzz/fuzz_plan.c
%C%_fuzz_replay_planindex_SOURCES = \
	%D%/fuzz/replay.c %D%/fuzz/fuzz_planindex.c
%C%_fuzz_replay_events_SOURCES = \
	%D%/fuzz/replay.c %D%/fuzz/fuzz_events.c $(events_sources)
%C%_fuzz_replay_index_SOURCES = \
	%D%/fuzz/replay.c %D%/fuzz/fuzz_index.c gpu/data/tokens_index.c

# Makes and reads checkpoints for tests; built when one of them is.
EXTRA_LIBRARIES += %D%/libmk.a
%C%_libmk_a_SOURCES = \
	%D%/make/mkpt.h %D%/make/mkpt.c \
	%D%/make/mkckpt.h %D%/make/mkckpt_impl.h %D%/make/mkckpt.c \
	%D%/make/mkckpt_check.c \
	%D%/make/mkckpt_model.c %D%/make/mkckpt_experts.c \
	%D%/make/world.h %D%/make/world.c %D%/make/world_info.c \
	%D%/support/realfiles.h %D%/support/realfiles.c \
	%D%/support/goodcase.h %D%/support/goodcase.c \
	%D%/support/walk.h %D%/support/walk.c
CLEANFILES += %D%/libmk.a demo.png

LDADD = %D%/libmk.a $(ckpt_libs) $(CMOCKA_LIBS) $(NETTLE_LIBS)
TESTS += $(scripts)
if ENABLE_FUZZ
noinst_PROGRAMS += $(fuzz_targets)
LDADD += $(LIB_FUZZING_ENGINE)
else
check_PROGRAMS += $(replays)
TESTS += $(replays)
if HAVE_TEST_LIBS
if BUILD_TRAIN
check_PROGRAMS += $(train_tests) $(cuda_tests)
TESTS += $(train_tests) $(cuda_tests)
endif
check_PROGRAMS += $(unit_tests)
# The last of them has threads for all processors.
TESTS += $(unit_tests)
endif
endif

# Under ASan, what is freed is reused after 1 MiB instead of 256: new pages
# would take as long as the tests.
TEST_EXTENSIONS = .sh
AM_TESTS_ENVIRONMENT = \
	top_srcdir='$(abs_top_srcdir)'; export top_srcdir; \
	top_builddir='$(abs_top_builddir)'; export top_builddir; \
	CC='$(CC)'; export CC; \
	NVCC='$(NVCC)'; export NVCC; \
	sanitize='$(enable_sanitize)'; export sanitize; \
	CPPFLAGS='$(AM_CPPFLAGS) $(CPPFLAGS)'; export CPPFLAGS; \
	ASAN_OPTIONS="quarantine_size_mb=1$${ASAN_OPTIONS:+:$$ASAN_OPTIONS}"; \
	export ASAN_OPTIONS; \
	PATH='$(abs_top_builddir)':"$$PATH"; export PATH;

if BUILD_TRAIN
check_PROGRAMS += $(train_programs) $(cuda_programs)
noinst_PROGRAMS += $(train_bench)
endif

# What cases/mount/tools.sh and cases/mount/mapped.sh map files with.
check_PROGRAMS += %D%/programs/mapcmp %D%/programs/mapload

# Makes checkpoints of large parameters for cases and benchmarks.
check_PROGRAMS += %D%/programs/mkrun

# What `make bench` measures conversions with.
noinst_PROGRAMS += %D%/bench/cast
%C%_bench_cast_LDADD = $(ckpt_libs)

# What any FUSE server can do, for `make bench`.
noinst_PROGRAMS += %D%/bench/bare
%C%_bench_bare_SOURCES = %D%/bench/bare.c fs/ops/fuse_caps.c fs/backing/passthrough.c \
	fs/backing/timeslice.c
%C%_bench_bare_LDADD = $(FUSE_LIBS)

# What the demonstration shows tensors with.
noinst_PROGRAMS += %D%/programs/tensor_stats
%C%_programs_tensor_stats_LDADD = $(ckpt_libs)

# Data and helpers that `make dist` would not find by itself.
EXTRA_DIST += $(scripts) \
	%D%/demo.sh %D%/numbers %D%/arith.expect %D%/splits.expect %D%/good \
	%D%/bad %D%/events %D%/cases/lib.sh \
	%D%/cases/mpi.sh %D%/cases/train/train_lib.sh \
	%D%/cases/train/ranks_lib.sh %D%/cases/mount/loadtorch.py %D%/mpi.supp \
	%D%/interop %D%/bench \
	%D%/fuzz/corpus %D%/fuzz/seed.sh %D%/fuzz/pickle.dict

# Longer runs that are not part of `make check`: speed, and comparison with
# other programs (these may need Python).
bench: all %D%/programs/mkrun$(EXEEXT)
	@$(AM_TESTS_ENVIRONMENT) '$(abs_top_srcdir)'/tests/bench/run
interop: all
	@$(AM_TESTS_ENVIRONMENT) rc=0; \
	for s in '$(abs_top_srcdir)'/tests/$@/*.sh; do \
		test -f "$$s" || continue; \
		echo "== $${s##*/}"; \
		"$$s"; st=$$?; \
		test $$st -eq 0 || test $$st -eq 77 || rc=1; \
	done; exit $$rc
.PHONY: bench interop
