# Loaders of checkpoints that DeepSpeed did not write: PyTorch's distributed ones (dcp*) and
# Hugging Face's; and the choice of the loader of a directory.
# Uses the rooms above.
ckpt_libuckpt_a_SOURCES += \
	%D%/dcp_metadata.h %D%/dcp_chunks.c %D%/dcp_flattened.c %D%/dcp_unpickle.h \
	%D%/dcp_unpickle.c %D%/dcp_metadata.c %D%/dcp_storage.h %D%/dcp_storage.c %D%/dcp_extents.h \
	%D%/dcp_extents.c %D%/dcp_model.h %D%/dcp_optimizer.h %D%/dcp_optimizer.c \
	%D%/dcp_numbers.c %D%/dcp_fused.c %D%/dcp_choose.c %D%/dcp_model.c %D%/dcp_extras.c \
	%D%/dcp_megatron.c %D%/dcp.h %D%/dcp_rows.c %D%/dcp_object.c %D%/dcp_safetensors.c \
	%D%/dcp_dtensor.h %D%/dcp_dtensor.c %D%/dcp_ranks.c %D%/dcp.c %D%/hf.h %D%/hf.c %D%/loaders.h %D%/loaders.c
