# uckpt_diff: two checkpoints compared.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/diff.h %D%/diff.c %D%/diff_compare.c %D%/diff_report.c \
	%D%/diff_tree.c
