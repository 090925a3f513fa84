"""The sizes of the demo model: every part of the published architecture, small."""

from dsinfer_jax.config import ModelConfig, tiny

LAYERS = 8
NOISE_TOKEN = 2  # the padding token, which the model never reads otherwise


def demo_config(vocab_size: int, draft_layers: int = 3) -> ModelConfig:
    """Eight layers: three of the producer half, five that share the keys of the fourth.

    Published formats need widths that are multiples of 32; everything else follows from what two
    CPU cores can train in two hours.

    Args:
        draft_layers: 0: the model without its draft block.
    """
    return tiny(
        vocab_size=vocab_size,
        hidden_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        head_dim=64,
        qk_rope_head_dim=16,
        q_lora_rank=64,
        o_lora_rank=64,
        o_groups=2,
        swiglu_limit=10.0,
        max_position_embeddings=4096,
        sliding_window=32,
        rope_scaling=None,
        compress_ratios=[0, 2, 2, 1, 1, 1, 1, 1, *[0] * draft_layers],
        kv_source_layer_ids=[1, 3],
        index_source_layer_ids=[1, 3, 5],
        candidate_source_layer_id=3,
        candidate_topk_blocks=64,
        candidate_block_size=8,
        index_n_heads=4,
        index_head_dim=32,
        index_topk=64,
        moe_intermediate_size=64,
        n_routed_experts=16,
        num_experts_per_tok=2,
        engram_layer_ids=[1, 2],
        engram_n_heads=2,
        engram_head_dim=32,
        engram_vocab_size=1021,
        num_nextn_predict_layers=draft_layers,
        dspark_block_size=5,
        dspark_noise_token_id=NOISE_TOKEN,
        dspark_target_layer_ids=[LAYERS - 3, LAYERS - 2, LAYERS - 1],
        dspark_markov_rank=64,
        dspark_n_routed_experts=8,
        dspark_num_experts_per_tok=2,
    )
