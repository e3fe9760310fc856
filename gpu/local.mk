# Trains GPT-2; knows checkpoints through ckpt/ and nothing of FUSE.  Rooms are
# in the order in which they may use each other (tests/lint/layers.sh).

if BUILD_TRAIN
noinst_LIBRARIES += %D%/libuctrain.a
endif
%C%_libuctrain_a_SOURCES =
# The one part of the tree whose loops are worth vectors and threads.
%C%_libuctrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) \
	$(CUDA_CFLAGS) -DCUDA_DIRS='"$(CUDA_DIRS)"'
%C%_libuctrain_a_CFLAGS = $(AM_CFLAGS) $(VECTOR_CFLAGS) $(OPENMP_CFLAGS)

if BUILD_TRAIN
bin_PROGRAMS += uctrain
endif
uctrain_SOURCES = %D%/main.c
uctrain_LDADD = $(train_libs)

train_libs = %D%/libuctrain.a $(ckpt_libs) $(CJSON_LIBS) $(DNNL_LIBS) \
	$(CUDA_LIBS) $(OPENMP_CFLAGS) -lm

include %D%/watch/local.mk
include %D%/backend/local.mk
include %D%/nvidia/local.mk
include %D%/comm/local.mk
include %D%/model/local.mk
include %D%/config/local.mk
include %D%/read/local.mk
include %D%/cuda/local.mk
include %D%/zero/local.mk
include %D%/load/local.mk
include %D%/data/local.mk
include %D%/save/local.mk
include %D%/metrics/local.mk
include %D%/plot/local.mk
include %D%/train/local.mk
