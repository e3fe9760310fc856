# uckpt_convert: a planned tree written to a disk.  uckpt_info, uckpt_check, uckpt_diff: a
# checkpoint described, proved whole, compared with another, and what these reports share.
# uckpt_pack, uckpt_unpack: what goes into a pack, and what can be left out of it.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/resume.h %D%/resume.c %D%/write_tree.h %D%/write_tree.c %D%/compare_tree.h \
	%D%/compare_tree.c %D%/convert.c %D%/report.h %D%/report.c %D%/info_impl.h %D%/info.c %D%/info_parameters.c %D%/info_tags.c %D%/check.h \
	%D%/check.c %D%/check_files.c %D%/check_tree.c %D%/check_copies.c %D%/check_blobs.c \
	%D%/diff.h %D%/diff.c %D%/diff_compare.c %D%/diff_report.c %D%/diff_tree.c \
	%D%/pack_inputs.h %D%/pack_inputs.c %D%/pack_derive.c %D%/packing.c
