# What is made of a table: the tree of a view, its files' names, sizes and contents.  The
# weights alone, split into files as Hugging Face does; a re-cut: the files that another number
# of data-parallel ranks would have saved; the universal tree; a distributed checkpoint.
# Uses the rooms above.  The way in for fs/ and for the commands.
ckpt_libuckpt_a_SOURCES += \
	%D%/weights_split.h %D%/weights_split.c %D%/adapter.h %D%/adapter.c %D%/config_files.h \
	%D%/config_files.c %D%/adapter_dirs.h %D%/adapter_dirs.c %D%/recut.h %D%/recut_impl.h \
	%D%/recut_groups.c %D%/recut_experts.c %D%/recut.c %D%/zero_object.h %D%/zero_object.c %D%/zero_optim.c \
	%D%/zero_model.c %D%/zero_folding.c %D%/all_views.h %D%/view.h %D%/view_paths.h \
	%D%/view_paths.c %D%/view_impl.h %D%/all_views.c %D%/view.c %D%/view_tree.c \
	%D%/view_universal.c \
	%D%/view_dcp_metadata.h %D%/view_dcp_metadata.c %D%/view_dcp_fused.h %D%/view_dcp_fused.c \
	%D%/view_dcp_state.h %D%/view_dcp_state.c %D%/view_dcp.c %D%/view_universal_warn.c %D%/view_optimizer.c \
	%D%/view_weights.c %D%/view_recut.c %D%/view_identity.c %D%/view_walk.c
