# NVIDIA's libraries, loaded when they are needed.
# Uses ckpt/ and backend.
if HAVE_CUDA
gpu_libuctrain_a_SOURCES += %D%/cublaslt_api.h %D%/cublaslt_api.c
endif
if HAVE_NCCL
gpu_libuctrain_a_SOURCES += %D%/nccl_api.h %D%/nccl_api.c
endif
