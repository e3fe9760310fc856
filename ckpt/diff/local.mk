# ucckpt diff: two checkpoints compared.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/diff.h %D%/diff.c %D%/diff_compare.c %D%/diff_print.c \
	%D%/diff_tree.c
