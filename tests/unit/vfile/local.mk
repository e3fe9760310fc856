# Units of ckpt/vfile.
unit_tests += \
	%D%/test_extent \
	%D%/test_gather \
	%D%/test_vfile \
	%D%/test_vfile_crc
tests_unit_vfile_test_vfile_SOURCES = %D%/test_vfile.c $(made)
tests_unit_vfile_test_vfile_crc_SOURCES = %D%/test_vfile_crc.c $(made)
