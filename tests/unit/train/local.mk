# Units of gpu/.
train_tests = \
	%D%/test_gpt2 \
	%D%/test_naming \
	%D%/test_optimizer \
	%D%/test_comm \
	%D%/test_save_lock \
	%D%/test_init_weights \
	%D%/test_stop \
	%D%/test_watch \
	%D%/test_pt_head \
	%D%/test_splitmix \
	%D%/test_cpu_math \
	%D%/test_cpu_elementwise \
	%D%/test_cpu_ops \
	%D%/test_cpu_grad \
	%D%/test_network \
	%D%/test_upload \
	%D%/test_rng \
	%D%/test_config \
	%D%/test_config_json \
	%D%/test_tokens \
	%D%/test_samples \
	%D%/test_tbevents \
	%D%/test_metrics
tests_unit_train_test_cpu_elementwise_SOURCES = %D%/test_cpu_elementwise.c $(hostbackend)
tests_unit_train_test_cpu_ops_SOURCES = %D%/test_cpu_ops.c $(numbers)
tests_unit_train_test_network_SOURCES = %D%/test_network.c $(numbers) $(whole)
tests_unit_train_test_upload_SOURCES = %D%/test_upload.c $(openfiles) $(apart)
tests_unit_train_test_config_SOURCES = %D%/test_config.c $(commandline)
tests_unit_train_test_config_json_SOURCES = %D%/test_config_json.c $(commandline)
tests_unit_train_test_comm_CPPFLAGS = $(AM_CPPFLAGS) $(MPI_CFLAGS)
tests_unit_train_test_comm_LDADD = $(train_ldadd)
# Its own function is found before MPI's.
tests_unit_train_test_comm_LDFLAGS = $(AM_LDFLAGS) -rdynamic -Wl,-u,MPI_Init_thread
tests_unit_train_test_save_lock_LDADD = $(train_ldadd)
tests_unit_train_test_gpt2_LDADD = $(train_ldadd)
tests_unit_train_test_naming_LDADD = $(train_ldadd)
tests_unit_train_test_optimizer_LDADD = $(train_ldadd)
tests_unit_train_test_init_weights_LDADD = $(train_ldadd)
tests_unit_train_test_stop_LDADD = $(train_ldadd)
tests_unit_train_test_samples_LDADD = $(train_ldadd)
tests_unit_train_test_watch_LDADD = $(train_ldadd)
tests_unit_train_test_pt_head_LDADD = $(train_ldadd)
tests_unit_train_test_splitmix_LDADD = $(train_ldadd)
tests_unit_train_test_cpu_math_LDADD = $(train_ldadd)
tests_unit_train_test_cpu_elementwise_LDADD = $(train_ldadd)
tests_unit_train_test_cpu_ops_LDADD = $(train_ldadd)
tests_unit_train_test_cpu_grad_LDADD = $(train_ldadd)
tests_unit_train_test_network_LDADD = $(train_ldadd)
tests_unit_train_test_upload_LDADD = $(train_ldadd)
tests_unit_train_test_rng_LDADD = $(train_ldadd)
tests_unit_train_test_config_LDADD = $(train_ldadd)
tests_unit_train_test_config_json_LDADD = $(train_ldadd)
tests_unit_train_test_tokens_LDADD = $(train_ldadd)
tests_unit_train_test_tbevents_LDADD = $(train_ldadd)
tests_unit_train_test_metrics_LDADD = $(train_ldadd)

# The CUDA backend without a GPU: its kernels compiled as C++, with headers and
# a runtime that emulate CUDA.  test_cuda and test_graph are the same tests on a GPU.
cuda_tests =
cuda_test_sources = %D%/test_cuda.c $(sides) $(ops) $(update)
if HAVE_CXX
cuda_tests += %D%/test_cuda_emulated %D%/test_graph_emulated %D%/test_gemm_choice
endif
if HAVE_CUDA
cuda_tests += %D%/test_cuda %D%/test_graph
endif
tests_unit_train_test_cuda_SOURCES = $(cuda_test_sources)
tests_unit_train_test_cuda_LDADD = $(train_ldadd)
tests_unit_train_test_cuda_emulated_SOURCES = $(cuda_test_sources)
tests_unit_train_test_cuda_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS) \
	-DCUDA_EMULATED
tests_unit_train_test_cuda_emulated_LDADD = $(cudaemu_libs) $(train_ldadd)
tests_unit_train_test_cuda_emulated_LDFLAGS = $(cudaemu_ldflags)
tests_unit_train_test_graph_SOURCES = %D%/test_graph.c
tests_unit_train_test_graph_LDADD = $(train_ldadd)
tests_unit_train_test_graph_emulated_SOURCES = %D%/test_graph.c
tests_unit_train_test_graph_emulated_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
tests_unit_train_test_graph_emulated_LDADD = $(cudaemu_libs) $(train_ldadd)
tests_unit_train_test_graph_emulated_LDFLAGS = $(cudaemu_ldflags)
tests_unit_train_test_gemm_choice_SOURCES = %D%/test_gemm_choice.c $(sides) $(ops)
tests_unit_train_test_gemm_choice_CPPFLAGS = $(cudaemu_includes) $(AM_CPPFLAGS)
tests_unit_train_test_gemm_choice_LDADD = $(cudaemu_libs) $(train_ldadd)
tests_unit_train_test_gemm_choice_LDFLAGS = $(cudaemu_ldflags)
