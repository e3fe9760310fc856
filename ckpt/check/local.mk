# ucckpt check: a checkpoint proved whole.
# Uses the rooms above.  May print.
ucckpt_SOURCES += \
	%D%/check.h %D%/check.c %D%/check_files.c %D%/check_tree.c \
	%D%/check_ranks.c %D%/check_replicas.c %D%/check_copies.c \
	%D%/check_layers.c %D%/check_forms.c
