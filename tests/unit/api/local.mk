# Units of ckpt/commands: the library as its users see it.
unit_tests += \
	%D%/test_source \
	%D%/test_commands
