# Checkpoints that DeepSpeed did not write.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/hf.h %D%/hf.c
