# `make check`: unit tests, mounted cases, and the rules of the house.  To add
# a unit, write tests/test_NAME.c and name it in unit_tests; to add a case,
# name its script in scripts.  Exit status 77 means skipped.

unit_tests = \
	%D%/test_parallel \
	%D%/test_busguard \
	%D%/test_streamcopy \
	%D%/test_checksum \
	%D%/test_tensor \
	%D%/test_cast \
	%D%/test_arith \
	%D%/test_zip \
	%D%/test_pickle \
	%D%/test_pickle_write \
	%D%/test_legacy \
	%D%/test_legacy_bad \
	%D%/test_safetensors \
	%D%/test_hfdir \
	%D%/test_namehash \
	%D%/test_ptwrite \
	%D%/test_names \
	%D%/test_merge \
	%D%/test_merge_parts \
	%D%/test_geometry \
	%D%/test_geometry_bad \
	%D%/test_geometry_random \
	%D%/test_partition \
	%D%/test_extent \
	%D%/test_gather \
	%D%/test_shardcache \
	%D%/test_scratch \
	%D%/test_vfile \
	%D%/test_vfile_sum \
	%D%/test_vfile_fill \
	%D%/test_treetaker \
	%D%/test_state \
	%D%/test_plan \
	%D%/test_model \
	%D%/test_computed \
	%D%/test_experts \
	%D%/test_index \
	%D%/test_index_lies \
	%D%/test_indexfile \
	%D%/test_order \
	%D%/test_stats \
	%D%/test_bad \
	%D%/test_bad_ranks \
	%D%/test_good \
	%D%/test_hfsplit \
	%D%/test_stwrite \
	%D%/test_weights \
	%D%/test_outdir \
	%D%/test_property
%C%_test_legacy_SOURCES = %D%/test_legacy.c $(mklegacy)
%C%_test_legacy_bad_SOURCES = %D%/test_legacy_bad.c $(mklegacy)
%C%_test_merge_SOURCES = %D%/test_merge.c $(rules)
%C%_test_merge_parts_SOURCES = %D%/test_merge_parts.c $(rules)
%C%_test_geometry_SOURCES = %D%/test_geometry.c $(slices)
%C%_test_geometry_bad_SOURCES = %D%/test_geometry_bad.c $(slices)
%C%_test_geometry_random_SOURCES = %D%/test_geometry_random.c $(slices)
%C%_test_experts_SOURCES = %D%/test_experts.c $(slices)
%C%_test_vfile_SOURCES = %D%/test_vfile.c $(made)
%C%_test_vfile_sum_SOURCES = %D%/test_vfile_sum.c $(made)
%C%_test_vfile_fill_SOURCES = %D%/test_vfile_fill.c $(made)
%C%_test_treetaker_SOURCES = %D%/test_treetaker.c $(made)
%C%_test_index_SOURCES = %D%/test_index.c $(indexed)
%C%_test_index_lies_SOURCES = %D%/test_index_lies.c $(indexed)
%C%_test_order_SOURCES = %D%/test_order.c fs/order.c
%C%_test_stats_SOURCES = %D%/test_stats.c fs/stats.c
%C%_test_bad_SOURCES = \
	%D%/test_bad.c \
	%D%/bad.h \
	%D%/bad_experts.c \
	%D%/bad_files.c \
	%D%/bad_model.c \
	%D%/bad_optim.c

# What several of them share.
apart = \
	%D%/apart.h %D%/apart.c \
	%D%/hostbackend.h %D%/hostbackend.c
commandline = %D%/commandline.h %D%/commandline.c
indexed = %D%/indexed.h %D%/indexed.c
made = %D%/made.h %D%/made.c
mklegacy = %D%/mklegacy.h %D%/mklegacy.c
rules = %D%/rules.h %D%/rules.c
slices = %D%/slices.h %D%/slices.c

# Those that take longest first: two run at a time, and none should be left over.
scripts = \
	%D%/cases/train_load.sh \
	%D%/cases/train_invariant.sh \
	%D%/cases/train_cuda_ranks.sh \
	%D%/cases/train_reshape.sh \
	%D%/cases/train_resume.sh \
	%D%/cases/train_deepspeed.sh \
	%D%/cases/train_errors.sh \
	%D%/cases/train_save.sh \
	%D%/cases/train_weights.sh \
	%D%/cases/train_accumulate.sh \
	%D%/cases/train_hf.sh \
	%D%/cases/train_mount.sh \
	%D%/cases/train_cuda.sh \
	%D%/cases/train_gds.sh \
	%D%/cases/train_cudnn.sh \
	%D%/cases/train_zero.sh \
	%D%/layers.sh \
	%D%/headers.sh \
	%D%/cases/mount_tree.sh \
	%D%/cases/mount_run.sh \
	%D%/cases/mount_torch.sh \
	%D%/cases/mount_weights.sh \
	%D%/cases/mount_hfdir.sh \
	%D%/cases/mount_tools.sh \
	%D%/cases/mount_errors.sh \
	%D%/cases/mount_backed.sh \
	%D%/cases/mount_unprivileged.sh \
	%D%/cases/mount_mapped.sh \
	%D%/cases/mount_lifecycle.sh \
	%D%/cases/mount_index.sh \
	%D%/cases/mount_valgrind.sh \
	%D%/cases/example_extents.sh \
	%D%/cases/demo.sh \
	%D%/cases/man_layouts.sh \
	%D%/cases/ucckpt_info.sh \
	%D%/cases/ucckpt_check.sh \
	%D%/cases/ucckpt_convert.sh \
	%D%/cases/ucckpt_convert_fail.sh \
	%D%/cases/ucckpt_diff.sh \
	%D%/cases/ucckpt_extents.sh \
	%D%/cases/ucplot.sh

# Units of the trainer.
train_tests = \
	%D%/test_gpt2 \
	%D%/test_optimizer \
	%D%/test_initial \
	%D%/test_stop \
	%D%/test_front \
	%D%/test_cpu_math \
	%D%/test_cpu_flat \
	%D%/test_cpu_ops \
	%D%/test_cpu_grad \
	%D%/test_network \
	%D%/test_intake \
	%D%/test_rng \
	%D%/test_config \
	%D%/test_config_json \
	%D%/test_tokens \
	%D%/test_tbevents \
	%D%/test_metrics
train_ldadd = %D%/libmk.a $(train_libs) $(CMOCKA_LIBS) $(NETTLE_LIBS)
%C%_test_gpt2_LDADD = $(train_ldadd)
%C%_test_rng_LDADD = $(train_ldadd)
%C%_test_config_SOURCES = %D%/test_config.c $(commandline)
%C%_test_config_LDADD = $(train_ldadd)
%C%_test_config_json_SOURCES = %D%/test_config_json.c $(commandline)
%C%_test_config_json_LDADD = $(train_ldadd)
%C%_test_tokens_LDADD = $(train_ldadd)
%C%_test_tbevents_LDADD = $(train_ldadd)
%C%_test_metrics_LDADD = $(train_ldadd)
%C%_test_initial_LDADD = $(train_ldadd)
%C%_test_stop_LDADD = $(train_ldadd)
%C%_test_front_LDADD = $(train_ldadd)
%C%_test_cpu_math_LDADD = $(train_ldadd)
%C%_test_cpu_flat_SOURCES = \
	%D%/test_cpu_flat.c \
	%D%/hostbackend.h %D%/hostbackend.c
%C%_test_cpu_flat_LDADD = $(train_ldadd)
%C%_test_cpu_ops_SOURCES = \
	%D%/test_cpu_ops.c \
	%D%/numbers.h %D%/numbers.c
%C%_test_cpu_ops_LDADD = $(train_ldadd)
%C%_test_cpu_grad_LDADD = $(train_ldadd)
%C%_test_network_SOURCES = \
	%D%/test_network.c \
	%D%/numbers.h %D%/numbers.c \
	%D%/whole.h %D%/whole.c
%C%_test_network_LDADD = $(train_ldadd)
%C%_test_optimizer_LDADD = $(train_ldadd)
%C%_test_intake_SOURCES = %D%/test_intake.c %D%/openfiles.h $(apart)
%C%_test_intake_LDADD = $(train_ldadd)

# The CUDA backend without a GPU: its kernels compiled as C++, with headers and
# a runtime that emulate CUDA.  test_cuda is the same test on a GPU.
cuda_tests =
cuda_programs =
cuda_test_sources = \
	%D%/test_cuda.c %D%/sides.h %D%/sides.c %D%/ops.h %D%/ops.c
if HAVE_CXX
cuda_tests += %D%/test_cuda_emulated %D%/test_gds
cuda_programs += %D%/uctrain_emulated
endif
if HAVE_CUDA
cuda_tests += %D%/test_cuda
endif
if HAVE_CUDNN
cuda_programs += %D%/cudnn_plans
endif
%C%_cudnn_plans_CPPFLAGS = $(AM_CPPFLAGS) $(CUDA_CFLAGS)
%C%_cudnn_plans_LDADD = $(train_libs)
%C%_test_cuda_SOURCES = $(cuda_test_sources)
%C%_test_cuda_LDADD = $(train_ldadd)
%C%_test_cuda_emulated_SOURCES = $(cuda_test_sources)
%C%_test_cuda_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS) \
	-DCUDA_EMULATED
%C%_test_cuda_emulated_LDADD = $(cudaemu_libs) $(train_ldadd)
%C%_test_cuda_emulated_LDFLAGS = $(cudaemu_ldflags)
%C%_test_gds_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
%C%_test_gds_LDADD = $(cudaemu_libs) $(train_ldadd)
%C%_test_gds_LDFLAGS = $(cudaemu_ldflags)
%C%_uctrain_emulated_SOURCES = gpu/main.c %D%/cudaemu/cudaemu_nccl.c
%C%_uctrain_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
%C%_uctrain_emulated_LDADD = $(cudaemu_libs) $(train_libs)
%C%_uctrain_emulated_LDFLAGS = $(cudaemu_ldflags)

cudaemu_kernels = \
	%D%/cudaemu/cuda_flat.o %D%/cudaemu/cuda_embed.o \
	%D%/cudaemu/cuda_norm.o %D%/cudaemu/cuda_linear.o \
	%D%/cudaemu/cuda_classify.o %D%/cudaemu/cuda_attention.o \
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
	%D%/cudaemu/gpu/cuda_launch.cuh %D%/cudaemu/gpu/cuda_ptx.cuh \
	%D%/cudaemu/cudaemu.h %D%/cudaemu/cudaemu.cc \
	%D%/cudaemu/cudaemu_api.c %D%/cudaemu/cudaemu_lt.c \
	%D%/cudaemu/cudaemu_cufile.h %D%/cudaemu/cudaemu_cufile.c \
	%D%/cudaemu/cudaemu_cudnn.h %D%/cudaemu/cudaemu_cudnn.c \
	%D%/cudaemu/cudaemu_cudnn_impl.h %D%/cudaemu/cudaemu_cudnn_ops.c \
	%D%/cudaemu/cudaemu_types.c
%C%_libcudaemu_a_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
%C%_libcudaemu_a_CXXFLAGS = $(cudaemu_cxxflags)
CLEANFILES += $(cudaemu_kernels) $(cudaemu_kernels:.o=.d) %D%/libcudaemu.a
%D%/cudaemu/%.o: gpu/%.cu
	$(AM_V_CXX)$(MKDIR_P) $(@D) && \
	$(CXX) $(cudaemu_cxxflags) $(CXXFLAGS) $(cudaemu_includes) \
		-I$(top_srcdir) -MD -MF $(@:.o=.d) -x c++ -c -o $@ $<
-include $(cudaemu_kernels:.o=.d)

# What cases run on several ranks.
train_programs = \
	%D%/ranks_zero \
	%D%/ranks_nccl \
	%D%/ranks_checkpoint
%C%_ranks_checkpoint_SOURCES = %D%/ranks_checkpoint.c $(apart)
%C%_ranks_checkpoint_LDADD = $(train_libs)
%C%_ranks_zero_SOURCES = %D%/ranks_zero.c $(apart)
%C%_ranks_zero_LDADD = $(train_libs)
%C%_ranks_nccl_SOURCES = %D%/ranks_zero.c $(apart) %D%/ncclemu.c \
	gpu/nccl_api.h gpu/devcomm_nccl.c
%C%_ranks_nccl_CPPFLAGS = -I$(top_srcdir)/%D%/cudaemu $(AM_CPPFLAGS) \
	$(MPI_CFLAGS)
%C%_ranks_nccl_LDADD = $(train_libs)

# What `make bench` measures training steps with, and what tells where the time of
# one goes on a GPU.
train_bench = %D%/bench/trainstep %D%/bench/gpuops
%C%_bench_gpuops_LDADD = $(train_libs)
%C%_bench_trainstep_SOURCES = \
	%D%/bench/trainstep.c \
	%D%/whole.h %D%/whole.c
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
events_sources = gpu/tfrecord.c gpu/tbevents_read.c
%C%_fuzz_fuzz_events_SOURCES = %D%/fuzz/fuzz_events.c $(events_sources)
%C%_fuzz_fuzz_index_SOURCES = %D%/fuzz/fuzz_index.c gpu/tokens_index.c

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
	%D%/fuzz/replay.c %D%/fuzz/fuzz_index.c gpu/tokens_index.c

# Makes and reads checkpoints for tests; built when one of them is.
EXTRA_LIBRARIES += %D%/libmk.a
%C%_libmk_a_SOURCES = \
	%D%/mkpt.h %D%/mkpt.c \
	%D%/mkckpt.h %D%/mkckpt_impl.h %D%/mkckpt.c %D%/mkckpt_check.c \
	%D%/mkckpt_model.c %D%/mkckpt_experts.c \
	%D%/world.h %D%/world.c %D%/world_info.c \
	%D%/realfiles.h %D%/realfiles.c \
	%D%/goodcase.h %D%/goodcase.c \
	%D%/walk.h %D%/walk.c
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

# What cases/mount_tools.sh and cases/mount_mapped.sh map files with.
check_PROGRAMS += %D%/mapcmp %D%/mapload

# Makes checkpoints of large parameters for cases and benchmarks.
check_PROGRAMS += %D%/mkrun

# What `make bench` measures conversions with.
noinst_PROGRAMS += %D%/bench/cast
%C%_bench_cast_LDADD = $(ckpt_libs)

# What any FUSE server can do, for `make bench`.
noinst_PROGRAMS += %D%/bench/bare
%C%_bench_bare_SOURCES = %D%/bench/bare.c fs/kernel.c fs/passthrough.c \
	fs/turn.c
%C%_bench_bare_LDADD = $(FUSE_LIBS)

# What the demonstration shows tensors with.
noinst_PROGRAMS += %D%/tensor_stats
%C%_tensor_stats_LDADD = $(ckpt_libs)

# Data and helpers that `make dist` would not find by itself.
EXTRA_DIST += $(scripts) \
	%D%/demo.sh %D%/numbers %D%/arith.expect %D%/splits.expect %D%/good %D%/bad %D%/events %D%/cases/lib.sh \
	%D%/cases/mpi.sh %D%/cases/train_lib.sh %D%/cases/ranks_lib.sh %D%/cases/mount_torch.py %D%/mpi.supp %D%/interop %D%/bench \
	%D%/fuzz/corpus %D%/fuzz/seed.sh %D%/fuzz/pickle.dict

# Longer runs that are not part of `make check`: speed, and comparison with
# other programs (these may need Python).
bench: all %D%/mkrun$(EXEEXT)
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
