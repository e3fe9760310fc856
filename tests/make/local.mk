# Writes checkpoints for tests, of any shape and with any damage: .pt files
# (mkpt), whole checkpoints (mkckpt), whole models over model-parallel ranks
# (world), values in Python's syntax (literal).  Uses ckpt/.
EXTRA_LIBRARIES = tests/libmk.a
tests_libmk_a_SOURCES = \
	%D%/mkpt.h %D%/mkpt.c \
	%D%/literal.h %D%/literal.c \
	%D%/mkckpt.h %D%/mkckpt_impl.h %D%/mkckpt.c %D%/mkckpt_check.c \
	%D%/mkckpt_model.c %D%/mkckpt_experts.c %D%/mkckpt_dir.c \
	%D%/world.h %D%/world.c %D%/world_info.c
CLEANFILES += tests/libmk.a
mklegacy = %D%/mklegacy.h %D%/mklegacy.c
