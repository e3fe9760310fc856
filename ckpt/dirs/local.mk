# Directories: the files of a tag, the tags of a run, Hugging Face weights.
# Uses the rooms above; tensors are only described here.
ckpt_libuckpt_a_SOURCES += \
	%D%/rank_files.h %D%/rank_files.c %D%/detect.h %D%/stage0_look.h %D%/stage0_look.c \
	%D%/tagdir.h %D%/leftover.h %D%/leftover.c %D%/tagdir.c \
	%D%/hfdir.h %D%/hfdir.c %D%/detect.c \
	%D%/hfhub.h %D%/hfhub.c \
	%D%/tags.h %D%/tags.c
