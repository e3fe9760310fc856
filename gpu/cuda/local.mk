# The CUDA backend and its kernels.
# Uses ckpt/ and the rooms above.
gpu_libuctrain_a_SOURCES += %D%/backend_cuda.h

# Host code is C, kernels are nvcc's; without CUDA something says so.
cuda_sources = \
	%D%/cuda.h %D%/cuda_ops.h \
	%D%/cuda_stream.c %D%/cuda_graph.c \
	%D%/cuda_gemm.h %D%/cuda_gemm.c \
	%D%/cuda_attention.h \
	%D%/backend_cuda.c
cuda_headers = \
	%D%/cuda_launch.cuh %D%/cuda_ptx.cuh %D%/cuda_types.cuh \
	%D%/cuda_reduce.cuh %D%/cuda_column_sums.cuh \
	%D%/cuda_tile.cuh %D%/cuda_head.cuh
cuda_kernels = \
	%D%/cuda_elementwise.cu %D%/cuda_embed.cu %D%/cuda_norm.cu \
	%D%/cuda_linear.cu %D%/cuda_cross_entropy.cu \
	%D%/cuda_attention.cu %D%/cuda_attention_grad.cu
EXTRA_DIST += $(cuda_headers) $(cuda_kernels)
if HAVE_CUDA
gpu_libuctrain_a_SOURCES += $(cuda_sources)
gpu_libuctrain_a_LIBADD = $(cuda_kernels:.cu=.o)
CLEANFILES += $(cuda_kernels:.cu=.o) $(cuda_kernels:.cu=.d) $(cuda_kernels:.cu=.flags)
SUFFIXES = .cu
AM_V_NVCC = $(am__v_NVCC_@AM_V@)
am__v_NVCC_ = $(am__v_NVCC_@AM_DEFAULT_V@)
am__v_NVCC_0 = @echo "  NVCC    " $@;
am__v_NVCC_1 =
.cu.o:
	$(AM_V_NVCC)$(MKDIR_P) $(@D) && \
	$(NVCC) $(NVCC_FLAGS) $(NVCCFLAGS) -I$(top_srcdir) -MD -MF $(@:.o=.d) -c -o $@ $< && \
	echo '$(NVCCFLAGS)' "$$NVCC_APPEND_FLAGS" >$(@:.o=.flags)
-include $(cuda_kernels:.cu=.d)
else
gpu_libuctrain_a_SOURCES += %D%/backend_nocuda.c
endif
