# uckpt_convert: a planned tree written to a disk.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/resume.h %D%/resume.c \
	%D%/treewrite.h %D%/treewrite.c \
	%D%/treesame.h %D%/treesame.c \
	%D%/convert.c
