# ucckpt check: a checkpoint proved whole.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/check.h %D%/check.c %D%/check_files.c %D%/check_tree.c \
	%D%/check_copies.c
