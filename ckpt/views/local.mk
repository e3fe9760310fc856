# What is made of a table: the tree of a view, its files' names, sizes and contents.  The
# weights alone, split into files as Hugging Face does; a re-cut: the files that another number
# of data-parallel ranks would have saved; the universal tree; a distributed checkpoint.
# Uses the rooms above.  The way in for fs/ and for the commands.
ckpt_libuckpt_a_SOURCES += \
	%D%/weights_split.h %D%/weights_split.c %D%/adapter.h %D%/adapter.c %D%/config_files.h \
	%D%/config_files.c %D%/adapter_dirs.h %D%/adapter_dirs.c %D%/recut.h %D%/recut_impl.h \
	%D%/recut_groups.c %D%/recut_experts.c %D%/recut.c %D%/zero_object.h %D%/zero_object.c %D%/zero_optim.c \
	%D%/zero_model.c %D%/zero_folding.c %D%/plan_views.h %D%/plan.h %D%/plan_paths.h \
	%D%/plan_paths.c %D%/plan_impl.h %D%/plan_views.c %D%/plan.c %D%/plan_tree.c \
	%D%/plan_universal.c \
	%D%/dcpview_metadata.h %D%/dcpview_metadata.c %D%/dcpview_fused.h %D%/dcpview_fused.c \
	%D%/dcpview_state.h %D%/dcpview_state.c %D%/plan_dcp.c %D%/plan_universal_warn.c %D%/plan_optimizer.c \
	%D%/plan_weights.c %D%/plan_recut.c %D%/plan_identity.c %D%/plan_walk.c
