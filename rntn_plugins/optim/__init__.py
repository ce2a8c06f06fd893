"""What the papers' training needs and fairseq's optimisers and schedules cannot say."""
