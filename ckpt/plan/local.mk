# The tree: which files there are, their names, sizes and contents.
# Uses the rooms above.  The way in for fs/ and for the commands.
ckpt_libuckpt_a_SOURCES += \
	%D%/plan_views.h \
	%D%/plan.h %D%/plan_paths.h %D%/plan_paths.c %D%/plan_impl.h %D%/plan_views.c \
	%D%/plan.c %D%/plan_tree.c %D%/plan_universal.c \
	%D%/dcpview_layout.h %D%/dcpview_layout.c %D%/dcpview_metadata.h %D%/dcpview_metadata.c %D%/dcpview_state.h \
	%D%/dcpview_state.c %D%/plan_dcp.c \
	%D%/plan_universal_warn.c %D%/plan_optimizer.c %D%/plan_weights.c \
	%D%/plan_recut.c %D%/plan_identity.c
