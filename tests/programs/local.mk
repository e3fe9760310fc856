# Programs that cases, benchmarks and the demonstration run.
# Uses make, support, ckpt/ and gpu/.

# What cases run on several ranks.
train_programs = \
	%D%/ranks_zero \
	%D%/ranks_nccl \
	%D%/ranks_checkpoint \
	%D%/uctrain_runs
%C%_ranks_checkpoint_SOURCES = %D%/ranks_checkpoint.c $(apart) $(update) \
	tests/cudaemu/ncclemu_apart.c $(nccl_emulated)
%C%_ranks_checkpoint_CPPFLAGS = $(%C%_ranks_nccl_CPPFLAGS)
%C%_ranks_checkpoint_LDADD = $(train_libs) $(MPI_LIBS)
%C%_uctrain_runs_LDADD = $(train_libs)
%C%_ranks_zero_SOURCES = %D%/ranks_zero.c $(apart) $(update) gpu/comm/comm_mpi.c
%C%_ranks_zero_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) -DMESSAGE_BYTES=65536
%C%_ranks_zero_LDADD = $(train_libs)
nccl_emulated = tests/cudaemu/nccl.h tests/cudaemu/ncclemu.h \
	tests/cudaemu/ncclemu.c gpu/nvidia/nccl_api.h gpu/comm/devcomm_nccl.c
%C%_ranks_nccl_SOURCES = %D%/ranks_zero.c $(apart) $(update) \
	tests/cudaemu/ncclemu_apart.c $(nccl_emulated)
%C%_ranks_nccl_CPPFLAGS = -I$(top_srcdir)/tests/cudaemu $(AM_CPPFLAGS) \
	$(MPI_CFLAGS)
%C%_ranks_nccl_LDADD = $(train_libs) $(MPI_LIBS)

cuda_programs =
if HAVE_CXX
cuda_programs += %D%/uctrain_emulated %D%/uctrain_emulated_runs
endif
emulated_sources = tests/cudaemu/cudaemu_nccl.c $(nccl_emulated)
%C%_uctrain_emulated_SOURCES = gpu/main.c $(emulated_sources)
%C%_uctrain_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS) $(MPI_CFLAGS)
%C%_uctrain_emulated_LDADD = $(cudaemu_libs) $(train_libs) $(MPI_LIBS)
%C%_uctrain_emulated_LDFLAGS = $(cudaemu_ldflags)
%C%_uctrain_emulated_runs_SOURCES = %D%/uctrain_runs.c $(emulated_sources)
%C%_uctrain_emulated_runs_CPPFLAGS = $(%C%_uctrain_emulated_CPPFLAGS)
%C%_uctrain_emulated_runs_LDADD = $(%C%_uctrain_emulated_LDADD)
%C%_uctrain_emulated_runs_LDFLAGS = $(cudaemu_ldflags)

# Preloaded to ranks (cases/mpi.sh).
check_DATA += %D%/naps.so
%D%/naps.so: %D%/naps.c
	$(preload) -o $@ $<
CLEANFILES += %D%/naps.so
EXTRA_DIST += %D%/naps.c

if BUILD_TRAIN
check_PROGRAMS += $(train_programs) $(cuda_programs)
endif

# What cases/mount map files with, and what makes checkpoints of large
# parameters.
check_PROGRAMS += %D%/fdmount %D%/mapcmp %D%/mapload %D%/mkrun

# What cases/train asks about files in Megatron's names.
check_PROGRAMS += %D%/megatron_files
%C%_megatron_files_LDADD = $(ckpt_libs)

# The demonstration prints tensors with it.
noinst_PROGRAMS += %D%/tensor_stats
%C%_tensor_stats_LDADD = $(ckpt_libs)
