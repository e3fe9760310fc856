# Units of ckpt/pack, and of what it needs of ckpt/base.
unit_tests += \
	%D%/test_block \
	%D%/test_pack \
	%D%/test_pack_damage \
	%D%/test_derive
tests_unit_pack_test_pack_SOURCES = %D%/test_pack.c %D%/packed.c %D%/packed.h
tests_unit_pack_test_pack_damage_SOURCES = %D%/test_pack_damage.c \
	%D%/packed.c %D%/packed.h
