# Units of ckpt/convert.
unit_tests += \
	%D%/test_forms_agree \
	%D%/test_resume
