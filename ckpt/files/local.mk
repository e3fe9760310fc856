# The files of a checkpoint by path, wherever they lie: in directories, in packs, or
# spread over several roots; and those that are made of a distributed checkpoint.
# Uses base, remote, format, pack, roots and dcp.
ckpt_libuckpt_a_SOURCES += \
	%D%/files.h %D%/files.c
