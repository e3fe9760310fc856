# Units of ckpt/convert.
unit_tests += \
	%D%/test_resume
