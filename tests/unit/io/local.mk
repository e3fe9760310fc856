# Units of ckpt/io.
unit_tests += \
	%D%/test_roots \
	%D%/test_context \
	%D%/test_io \
	%D%/test_shards
