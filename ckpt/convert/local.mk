# uckpt_convert: a planned tree written to a disk.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/resume.h %D%/resume.c \
	%D%/write_tree.h %D%/write_tree.c \
	%D%/compare_tree.h %D%/compare_tree.c \
	%D%/convert.c
