# The bytes of a virtual file: its layout, extents, gathers, checksums.
# Uses the rooms up to dirs; knows no model.
ckpt_libuckpt_a_SOURCES += \
	%D%/extent.h %D%/extent.c \
	%D%/gather.h %D%/gather.c %D%/file_layout.h %D%/file_layout.c \
	%D%/vfile.h %D%/vfile_impl.h %D%/vfile.c %D%/vfile_map.c \
	%D%/vfile_crc.c %D%/vfile_ahead.c \
	%D%/ucfs_ioctl.h

# Installed: what a program needs to ask a mounted file where its bytes lie.
ucfsincludedir = $(includedir)/ucfs
ucfsinclude_HEADERS = %D%/ucfs_ioctl.h
