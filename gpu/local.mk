# Trains GPT-2; knows checkpoints through ckpt/ and nothing of FUSE.

if BUILD_TRAIN
noinst_LIBRARIES += %D%/libuctrain.a
endif
%C%_libuctrain_a_SOURCES = \
	%D%/gpt2.h %D%/gpt2.c \
	%D%/backend.h \
	%D%/network.h \
	%D%/comm.h \
	%D%/config.h \
	%D%/zero.h \
	%D%/tokens.h \
	%D%/metrics.h

# The one part of the tree whose loops are worth vectors and threads.
%C%_libuctrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(BLAS_CFLAGS) $(MPI_CFLAGS)
%C%_libuctrain_a_CFLAGS = -O3 $(AM_CFLAGS) $(OPENMP_CFLAGS)

train_libs = %D%/libuctrain.a $(ckpt_libs) $(BLAS_LIBS) $(MPI_LIBS) -lm
