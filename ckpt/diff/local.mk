# ucckpt diff: two checkpoints compared.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/diff_tree.h %D%/diff_tree.c \
	%D%/diff.h %D%/diff.c %D%/diff_compare.c %D%/diff_summary.c \
	%D%/diff_text.c %D%/diff_json.c
