# Units of ckpt/dcp.
unit_tests += \
	%D%/test_chunks \
	%D%/test_choose \
	%D%/test_bombs \
	%D%/test_groups \
	%D%/test_numbers \
	%D%/test_dcp_bad \
	%D%/test_dcp_unusual \
	%D%/test_stage0_bad
tests_unit_dcp_test_dcp_bad_SOURCES = %D%/test_dcp_bad.c %D%/copy.h %D%/copy.c \
	%D%/mutate.h %D%/mutate.c
tests_unit_dcp_test_dcp_unusual_SOURCES = %D%/test_dcp_unusual.c %D%/copy.h %D%/copy.c
tests_unit_dcp_test_stage0_bad_SOURCES = %D%/test_stage0_bad.c %D%/mutate.h %D%/mutate.c \
	$(changed)
tests_unit_dcp_test_choose_SOURCES = %D%/test_choose.c %D%/entries.h
tests_unit_dcp_test_groups_SOURCES = %D%/test_groups.c %D%/entries.h
tests_unit_dcp_test_numbers_SOURCES = %D%/test_numbers.c %D%/entries.h
