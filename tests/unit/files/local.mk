# Units of ckpt/files.
unit_tests += \
	%D%/test_roots \
	%D%/test_context \
	%D%/test_files
