# Units of ckpt/dcp.
unit_tests += \
	%D%/test_place \
	%D%/test_dcp_bad
