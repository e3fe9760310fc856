# Trains GPT-2; knows checkpoints through ckpt/ and nothing of FUSE.

if BUILD_TRAIN
noinst_LIBRARIES += %D%/libuctrain.a
endif
%C%_libuctrain_a_SOURCES = \
	%D%/model/gpt2.h %D%/model/gpt2.c \
	%D%/backend/backend.h %D%/backend/dropout.h \
	%D%/backend/cpu.h %D%/backend/cpu_math.h \
	%D%/backend/cpu_gemm.c %D%/backend/cpu_norm.c %D%/backend/cpu_linear.c \
	%D%/backend/cpu_attention.c \
	%D%/backend/cpu_cross_entropy.c %D%/backend/cpu_optimizer.c \
	%D%/backend/backend_cpu.c \
	%D%/model/network.h %D%/model/network_impl.h \
	%D%/model/network.c %D%/model/network_memory.c \
	%D%/config/flags.h %D%/config/flags.c \
	%D%/config/dskeys.h %D%/config/dskeys.c \
	%D%/config/config.h %D%/config/config_impl.h %D%/config/config.c \
	%D%/config/config_json.c \
	%D%/comm/comm.h %D%/comm/pieces.h %D%/comm/comm_mpi.c \
	%D%/comm/devcomm.h \
	%D%/zero/optimizer.h %D%/zero/optimizer.c \
	%D%/zero/lr_schedule.h %D%/zero/lr_schedule.c \
	%D%/zero/loss_scaler.h %D%/zero/loss_scaler.c \
	%D%/model/init_weights.h %D%/model/init_weights.c \
	%D%/zero/zero.h %D%/zero/zero_impl.h \
	%D%/zero/zero.c %D%/zero/zero_comm.c %D%/zero/zero_exact.c \
	%D%/zero/zero_weights.c \
	%D%/save/ptsave.h %D%/save/ptsave.c \
	%D%/save/dsconfig.h %D%/save/dsconfig.c \
	%D%/save/saver.h %D%/save/save_impl.h \
	%D%/save/save.c %D%/save/save_prune.c %D%/save/save_model.c \
	%D%/save/save_shard.c \
	%D%/save/save_config.c \
	%D%/save/saver.c \
	%D%/read/mount_extents.h %D%/read/mount_extents.c \
	%D%/read/pt_head.h %D%/read/pt_head.c \
	%D%/read/reader.h %D%/read/reader_threads.c %D%/read/reader_uring.c \
	%D%/read/upload.h %D%/read/upload.c \
	%D%/load/load_tensor.h %D%/load/load_tensor.c \
	%D%/load/load.h %D%/load/load_impl.h \
	%D%/load/load.c %D%/load/load_find.c %D%/load/load_metadata.c \
	%D%/load/load_zero.c %D%/load/load_stage0.c %D%/load/load_universal.c \
	%D%/data/rng.h %D%/data/rng.c \
	%D%/data/tokens.h %D%/data/tokens_impl.h %D%/data/tokens.c \
	%D%/data/tokens_random.c \
	%D%/data/tokens_file.c %D%/data/tokens_index.c \
	%D%/metrics/decimal.h %D%/metrics/decimal.c \
	%D%/metrics/csvlog.h %D%/metrics/csvlog.c \
	%D%/metrics/tfrecord.h %D%/metrics/tfrecord.c \
	%D%/metrics/tbevents.h %D%/metrics/tbevents_write.c \
	%D%/metrics/tbevents_read.c \
	%D%/metrics/metrics.h %D%/metrics/metrics.c \
	%D%/train/stop.h %D%/train/stop.c \
	%D%/train/train.h %D%/train/train_impl.h %D%/train/train_steps.c \
	%D%/train/train.c

# Host code is C, kernels are nvcc's; without CUDA something says so.
cuda_sources = \
	%D%/cuda/cuda.h %D%/cuda/cuda_ops.h %D%/cuda/backend_cuda.c \
	%D%/cuda/cuda_stream.h %D%/cuda/cuda_stream.c \
	%D%/cuda/cuda_gemm.h %D%/cuda/cuda_gemm.c %D%/cuda/cuda_attention.h
cuda_kernels = \
	%D%/cuda/cuda_elementwise.cu %D%/cuda/cuda_embed.cu \
	%D%/cuda/cuda_norm.cu \
	%D%/cuda/cuda_linear.cu %D%/cuda/cuda_cross_entropy.cu \
	%D%/cuda/cuda_attention.cu %D%/cuda/cuda_attention_mma.cu
EXTRA_DIST += $(cuda_kernels) \
	%D%/cuda/cuda_launch.cuh %D%/cuda/cuda_ptx.cuh %D%/cuda/cuda_types.cuh \
	%D%/cuda/cuda_reduce.cuh %D%/cuda/cuda_column_sums.cuh \
	%D%/cuda/cuda_head.cuh %D%/cuda/cuda_mma.cuh
if HAVE_CUDA
%C%_libuctrain_a_SOURCES += $(cuda_sources) %D%/nvidia/cublaslt.c \
	%D%/nvidia/dynlib.h %D%/nvidia/dynlib.c
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
%C%_libuctrain_a_SOURCES += $(cudnn_sources) %D%/nvidia/cudnn_api.c
else
%C%_libuctrain_a_SOURCES += %D%/cuda/cuda_attention_nocudnn.c
endif
else
%C%_libuctrain_a_SOURCES += %D%/cuda/backend_nocuda.c
endif
cudnn_sources = \
	%D%/nvidia/cudnn_api.h \
	%D%/nvidia/cudnn_graph.h %D%/nvidia/cudnn_graph.c \
	%D%/nvidia/cudnn_attention.h %D%/nvidia/cudnn_attention.c \
	%D%/cuda/cuda_attention_cudnn.c

nccl_sources = %D%/nvidia/nccl_api.h %D%/nvidia/nccl_api.c %D%/comm/devcomm_nccl.c
if HAVE_NCCL
%C%_libuctrain_a_SOURCES += $(nccl_sources)
else
%C%_libuctrain_a_SOURCES += %D%/comm/devcomm_none.c
endif

cufile_sources = \
	%D%/nvidia/cufile_api.h \
	%D%/nvidia/cufile_files.h %D%/nvidia/cufile_files.c \
	%D%/read/reader_cufile.c
if HAVE_CUFILE
%C%_libuctrain_a_SOURCES += $(cufile_sources) %D%/nvidia/cufile_api.c
else
%C%_libuctrain_a_SOURCES += %D%/read/reader_nocufile.c
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
	%D%/metrics/decimal.h %D%/metrics/decimal.c \
	%D%/metrics/tfrecord.h %D%/metrics/tfrecord.c \
	%D%/metrics/tbevents.h %D%/metrics/tbevents_read.c \
	%D%/metrics/metrics.h \
	%D%/plot/plot.h %D%/plot/plot_run.c %D%/plot/plot_csv.c \
	%D%/plot/plot_draw.c \
	%D%/plot/plot_main.c
ucplot_LDADD = $(ckpt_libs)
