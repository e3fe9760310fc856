# CUDA where there is no GPU: headers and a runtime that stand for NVIDIA's, and
# the kernels compiled as C++.
cudaemu_kernels = \
	%D%/cuda_elementwise.o %D%/cuda_embed.o \
	%D%/cuda_norm.o %D%/cuda_linear.o \
	%D%/cuda_cross_entropy.o %D%/cuda_attention.o \
	%D%/cuda_attention_grad.o
cudaemu_libs = $(cudaemu_kernels) tests/libcudaemu.a
cudaemu_includes = -I$(top_srcdir)/%D%
# Calls that are counted, cudaemu_calls.c, which the archive yields before the
# trainer's archive asks for it.
cudaemu_ldflags = $(AM_LDFLAGS) -Wl,--wrap=open,--wrap=ioctl,--wrap=mincore \
	-Wl,-u,__wrap_open
cudaemu_cxxflags = -std=c++17 -pthread $(UCFS_CFLAGS) -fno-strict-aliasing \
	-Wno-unknown-pragmas -fno-exceptions -fno-rtti -fno-threadsafe-statics
EXTRA_LIBRARIES += tests/libcudaemu.a
tests_libcudaemu_a_SOURCES = \
	$(cuda_sources) \
	%D%/cuda_runtime.h %D%/cuda_runtime_api.h \
	%D%/cublasLt.h \
	%D%/nvtx3/nvToolsExt.h \
	%D%/gpu/cuda/cuda_ptx.cuh \
	%D%/cudaemu.h %D%/cudaemu.cc \
	%D%/cudaemu_impl.h %D%/cudaemu_api.c \
	%D%/cudaemu_stream.c %D%/cudaemu_graph.c %D%/cudaemu_lt.c \
	%D%/cudaemu_calls.c %D%/cudaemu_types.c
tests_libcudaemu_a_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
tests_libcudaemu_a_CXXFLAGS = $(cudaemu_cxxflags)
CLEANFILES += $(cudaemu_kernels) $(cudaemu_kernels:.o=.dep) tests/libcudaemu.a
%D%/%.o: gpu/cuda/%.cu %D%/local.mk
	$(AM_V_CXX)$(MKDIR_P) $(@D) && \
	$(CXX) $(cudaemu_cxxflags) $(CXXFLAGS) $(cudaemu_includes) \
		-I$(top_srcdir) -MD -MP -MF $(@:.o=.dep) -x c++ -c -o $@ $<
-include $(cudaemu_kernels:.o=.dep)
