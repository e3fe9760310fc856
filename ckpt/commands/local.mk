# What uckpt.h says of an open source: options, names, attributes, files.  What callers pass
# is checked here.
# uckpt_convert: a view written to a disk.  uckpt_info, uckpt_check, uckpt_diff: a
# checkpoint described, proved whole, compared with another, and what these reports share.
# uckpt_pack, uckpt_unpack: what goes into a pack, and what can be left out of it.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/api.h %D%/share.h %D%/share.c %D%/settings.h %D%/settings.c %D%/api_source.c \
	%D%/api_file.c %D%/api_map.c \
	%D%/api_extents.c %D%/api_tensors.c %D%/resume.h %D%/resume.c %D%/write_tree.h \
	%D%/write_tree.c %D%/convert.c %D%/report.h %D%/report.c %D%/info_impl.h \
	%D%/info_html.h %D%/info.c %D%/info_parameters.c %D%/info_tags.c %D%/info_html.c \
	%D%/info_picture.c %D%/check.h \
	%D%/check_files.c %D%/check_tree.c %D%/check_copies.c %D%/check.c %D%/diff.h %D%/diff.c \
	%D%/diff_compare.c %D%/diff_report.c %D%/diff_tree.c %D%/pack_inputs.h %D%/pack_inputs.c \
	%D%/pack_derive.c %D%/packing.c
