# Units of ckpt/base and ckpt/format.
unit_tests += \
	%D%/test_errmsg \
	%D%/test_array \
	%D%/test_interval \
	%D%/test_permissions \
	%D%/test_size \
	%D%/test_meter \
	%D%/test_beneath \
	%D%/test_hashtab \
	%D%/test_memory \
	%D%/test_parallel \
	%D%/test_crc32 \
	%D%/test_scratch \
	%D%/test_output \
	%D%/test_tensor \
	%D%/test_cast \
	%D%/test_arith \
	%D%/test_pickle \
	%D%/test_pickle_write
