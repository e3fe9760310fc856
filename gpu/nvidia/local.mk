# NVIDIA's libraries, loaded when they are needed.
# Uses ckpt/ and backend.
cudnn_sources = \
	%D%/cudnn_api.h \
	%D%/cudnn_graph.h %D%/cudnn_graph.c \
	%D%/cudnn_attention.h %D%/cudnn_attention.c
if HAVE_CUDA
gpu_libuctrain_a_SOURCES += %D%/cublaslt_api.h %D%/cublaslt_api.c
if HAVE_CUDNN
gpu_libuctrain_a_SOURCES += $(cudnn_sources) %D%/cudnn_api.c
endif
endif
if HAVE_NCCL
gpu_libuctrain_a_SOURCES += %D%/nccl_api.h %D%/nccl_api.c
endif
