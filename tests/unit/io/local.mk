# Units of ckpt/io and ckpt/files.
unit_tests += \
	%D%/test_roots \
	%D%/test_context \
	%D%/test_io
