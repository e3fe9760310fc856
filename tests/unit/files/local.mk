# Units of ckpt/files.
unit_tests += \
	%D%/test_roots \
	%D%/test_files
