# Trains GPT-2; knows checkpoints through ckpt/ and nothing of FUSE.

if BUILD_TRAIN
noinst_LIBRARIES += %D%/libuctrain.a
endif
%C%_libuctrain_a_SOURCES = \
	%D%/gpt2.h %D%/gpt2.c \
	%D%/backend.h %D%/pattern.h \
	%D%/cpu.h %D%/cpu_math.h \
	%D%/cpu_product.c %D%/cpu_norm.c %D%/cpu_linear.c %D%/cpu_attention.c \
	%D%/cpu_classify.c %D%/cpu_optimizer.c %D%/backend_cpu.c \
	%D%/network.h %D%/network_impl.h \
	%D%/network.c %D%/network_memory.c \
	%D%/flags.h %D%/flags.c \
	%D%/dskeys.h %D%/dskeys.c \
	%D%/config.h %D%/config_impl.h %D%/config.c %D%/config_json.c \
	%D%/comm.h %D%/pieces.h %D%/comm_mpi.c %D%/devcomm.h \
	%D%/optimizer.h %D%/optimizer.c \
	%D%/schedule.h %D%/schedule.c \
	%D%/scaler.h %D%/scaler.c \
	%D%/initial.h %D%/initial.c \
	%D%/zero.h %D%/zero_impl.h \
	%D%/zero.c %D%/zero_move.c %D%/zero_exact.c %D%/zero_weights.c \
	%D%/ptsave.h %D%/ptsave.c \
	%D%/dsconfig.h %D%/dsconfig.c \
	%D%/saver.h %D%/save_impl.h \
	%D%/save.c %D%/save_old.c %D%/save_model.c %D%/save_shard.c \
	%D%/save_config.c \
	%D%/saver.c \
	%D%/origin.h %D%/origin.c \
	%D%/front.h %D%/front.c \
	%D%/reader.h %D%/reader_threads.c %D%/reader_uring.c \
	%D%/intake.h %D%/intake.c \
	%D%/load_tensor.h %D%/load_tensor.c \
	%D%/load.h %D%/load_impl.h \
	%D%/load.c %D%/load_find.c %D%/load_facts.c \
	%D%/load_zero.c %D%/load_whole.c %D%/load_universal.c \
	%D%/rng.h %D%/rng.c \
	%D%/tokens.h %D%/tokens_impl.h %D%/tokens.c %D%/tokens_random.c \
	%D%/tokens_file.c %D%/tokens_index.c \
	%D%/decimal.h %D%/decimal.c \
	%D%/csvlog.h %D%/csvlog.c \
	%D%/tfrecord.h %D%/tfrecord.c \
	%D%/tbevents.h %D%/tbevents_write.c %D%/tbevents_read.c \
	%D%/metrics.h %D%/metrics.c \
	%D%/stop.h %D%/stop.c \
	%D%/train.h %D%/train_impl.h %D%/train_steps.c %D%/train.c

# Host code is C, kernels are nvcc's; without CUDA something says so.
cuda_sources = \
	%D%/cuda.h %D%/cuda_ops.h %D%/backend_cuda.c \
	%D%/cuda_queue.h %D%/cuda_queue.c \
	%D%/cuda_product.h %D%/cuda_product.c %D%/cuda_attention.h
cuda_kernels = \
	%D%/cuda_flat.cu %D%/cuda_embed.cu %D%/cuda_norm.cu \
	%D%/cuda_linear.cu %D%/cuda_classify.cu \
	%D%/cuda_attention.cu %D%/cuda_attention_mma.cu
EXTRA_DIST += $(cuda_kernels) \
	%D%/cuda_launch.cuh %D%/cuda_ptx.cuh %D%/cuda_lp.cuh \
	%D%/cuda_reduce.cuh %D%/cuda_columns.cuh \
	%D%/cuda_head.cuh %D%/cuda_mma.cuh
if HAVE_CUDA
%C%_libuctrain_a_SOURCES += $(cuda_sources) %D%/cuda_lt.c \
	%D%/library.h %D%/library.c
%C%_libuctrain_a_LIBADD = $(cuda_kernels:.cu=.o)
CLEANFILES += $(cuda_kernels:.cu=.o) $(cuda_kernels:.cu=.d)
SUFFIXES = .cu
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =
.cu.o:
	$(AM_V_NVCC)$(MKDIR_P) $(@D) && \
	$(NVCC) $(NVCC_FLAGS) -I$(top_srcdir) -MD -MF $(@:.o=.d) -c -o $@ $<
-include $(cuda_kernels:.cu=.d)
if HAVE_CUDNN
%C%_libuctrain_a_SOURCES += $(cudnn_sources) %D%/cudnn_api.c
else
%C%_libuctrain_a_SOURCES += %D%/cuda_attention_nocudnn.c
endif
else
%C%_libuctrain_a_SOURCES += %D%/backend_nocuda.c
endif
cudnn_sources = \
	%D%/cudnn_api.h \
	%D%/cudnn_graph.h %D%/cudnn_graph.c \
	%D%/cudnn_attention.h %D%/cudnn_attention.c \
	%D%/cuda_attention_cudnn.c

nccl_sources = %D%/nccl_api.h %D%/nccl_api.c %D%/devcomm_nccl.c
if HAVE_NCCL
%C%_libuctrain_a_SOURCES += $(nccl_sources)
else
%C%_libuctrain_a_SOURCES += %D%/devcomm_none.c
endif

cufile_sources = \
	%D%/cufile_api.h \
	%D%/cufile_files.h %D%/cufile_files.c %D%/reader_cufile.c
if HAVE_CUFILE
%C%_libuctrain_a_SOURCES += $(cufile_sources) %D%/cufile_api.c
else
%C%_libuctrain_a_SOURCES += %D%/reader_nocufile.c
endif

# The one part of the tree whose loops are worth vectors and threads.
%C%_libuctrain_a_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS) \
	$(URING_CFLAGS) $(CUDA_CFLAGS)
%C%_libuctrain_a_CFLAGS = $(AM_CFLAGS) $(VECTOR_CFLAGS) $(OPENMP_CFLAGS)

if BUILD_TRAIN
bin_PROGRAMS += uctrain
endif
uctrain_SOURCES = %D%/main.c
uctrain_LDADD = $(train_libs)

train_libs = %D%/libuctrain.a $(ckpt_libs) $(CJSON_LIBS) $(DNNL_LIBS) $(MPI_LIBS) \
	$(URING_LIBS) $(CUDA_LIBS) $(OPENMP_CFLAGS) -lm

# Draws what was logged; needs nothing of the trainer's.
bin_PROGRAMS += ucplot
ucplot_SOURCES = \
	%D%/decimal.h %D%/decimal.c \
	%D%/tfrecord.h %D%/tfrecord.c \
	%D%/tbevents.h %D%/tbevents_read.c \
	%D%/metrics.h \
	%D%/plot.h %D%/plot_run.c %D%/plot_csv.c %D%/plot_draw.c \
	%D%/plot_main.c
ucplot_LDADD = $(ckpt_libs)
