"""The names and conventions of other projects over the losses of onepass.torch: a program that imports one of theirs
imports the module of the same name here, and changes nothing else.

    trl         generalized_jsd_loss, selective_log_softmax, entropy_from_logits
    liger       liger_cross_entropy, liger_fused_linear_cross_entropy, liger_fused_linear_jsd, liger_kl_div, liger_jsd,
                liger_tvd and their modules
    torchtune   ForwardKLLoss, ReverseKLLoss, SymmetricKLLoss
    verl        logprobs_from_logits, entropy_from_logits, linear_cross_entropy
    quack       cross_entropy, linear_cross_entropy_func, chunked_linear_cross_entropy
    cce         linear_cross_entropy
    transformer_engine   parallel_cross_entropy
    megatron    vocab_parallel_cross_entropy

What differs from theirs, everywhere: losses are float32 for half inputs, no call waits for the device, a second
backward works, and targets have gradients, unless they are hidden states.
"""
