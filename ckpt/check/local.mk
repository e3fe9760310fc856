# uckpt_check: a checkpoint proved whole.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/check.h %D%/check.c %D%/check_files.c %D%/check_tree.c \
	%D%/check_copies.c %D%/check_blobs.c
