# Units of ckpt/format and dirs.
unit_tests += \
	%D%/test_zip \
	%D%/test_legacy \
	%D%/test_legacy_bad \
	%D%/test_safetensors \
	%D%/test_safetensors_write \
	%D%/test_serialization_id \
	%D%/test_ptwrite \
	%D%/test_ptfile_reads \
	%D%/test_names \
	%D%/test_hfdir
tests_unit_format_test_legacy_SOURCES = %D%/test_legacy.c $(mklegacy)
tests_unit_format_test_legacy_bad_SOURCES = %D%/test_legacy_bad.c $(mklegacy)
